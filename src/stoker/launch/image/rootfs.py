"""An image run without any container tool: unpacked into a folder, which becomes the root of a namespace."""

import os
import platform
import shutil
import tarfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

from stoker.launch.image.base import Progress
from stoker.launch.image.build import Built
from stoker.launch.image.contents import OPAQUE, WHITEOUT, Unpacked
from stoker.launch.image.pull import normal_platform
from stoker.launch.image.registry import Registry
from stoker.spec.errors import UserError

BLOCK = 1 << 20
# sh's own words: a root, a working directory and a command are its arguments, and none of them becomes part of it
ENTER = (
    'mkdir -p "$0/dev" "$0/proc"; mount --rbind /dev "$0/dev"; mount -t proc proc "$0/proc"; '
    'exec unshare --root="$0" "$@"'
)


def check_runnable(built: Built) -> None:
    here = normal_platform(platform.machine())
    if here != built.platform:
        raise UserError(
            f"the image is for {built.platform}, and this machine is {here}",
            remedy=f"Build it for {here}: --platform {here}",
        )
    missing = [program for program in ("unshare", "mount", "sh") if shutil.which(program) is None]
    if missing:
        raise UserError(
            f"there is no container tool here, and no {missing[0]} to do without",
            remedy="Install podman, docker or util-linux",
        )


def unpack(built: Built, root: Path, *, progress: Progress) -> None:
    """All layers, the lowest first. Nothing is written outside `root`, whatever a layer says."""
    total, done = sum(layer.size for layer in built.base.layers), 0
    source = built.base.reference
    with closing(Registry(source)) as registry:
        for layer in built.base.layers:
            lay(root, Unpacked(registry.parts(source.repository, layer.digest), f"layer {layer.digest[:19]}"))
            done += layer.size
            progress("unpack", done, total)
    for own in built.layers:
        with open(own.path, "rb") as file:
            lay(root, Unpacked(iter(lambda: file.read(BLOCK), b""), own.path.name))


def entering(root: Path, workdir: str, command: Sequence[str]) -> list[str]:
    """The command that runs `command` with `root` as its root; a user who is not root becomes it inside."""
    spaces = ["--mount", "--pid", "--fork", "--kill-child"]
    spaces += ["--user", "--map-root-user"] if os.geteuid() else []
    return ["unshare", *spaces, "sh", "-ec", ENTER, str(root), f"--wd={workdir}", *command]


def lay(root: Path, layer: Unpacked) -> None:
    with tarfile.open(fileobj=cast(Any, layer), mode="r|", bufsize=BLOCK) as tar:
        for member in tar:
            name = member.name.removeprefix("./").lstrip("/")
            folder, _, last = name.rpartition("/")
            if last.startswith(WHITEOUT):
                _take_away(root, folder, last)
            elif not (member.ischr() or member.isblk()):  # this machine's own devices are put there
                _extract(tar, member, root)


def _take_away(root: Path, folder: str, last: str) -> None:
    where = _inside(root, folder)
    gone = list(where.iterdir()) if last == OPAQUE and where.is_dir() else [where / last.removeprefix(WHITEOUT)]
    for path in gone:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> None:
    place = _inside(root, os.path.dirname(member.name)) / os.path.basename(member.name.rstrip("/"))
    if os.path.lexists(place) and not member.isdir():
        shutil.rmtree(place) if place.is_dir() and not place.is_symlink() else place.unlink()
    try:
        tar.extract(member, root, set_attrs=True, numeric_owner=True, filter=_as_root if not os.geteuid() else "tar")
    except tarfile.FilterError as e:
        raise UserError(
            f"the image holds {member.name}, which leads out of it: {e}", remedy="Do not use that image"
        ) from e


def _as_root(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
    """The modes as they are, set-user-id too: it is a root file system. The rest as safe as a tar can be."""
    mode = member.mode
    safe = tarfile.tar_filter(member, path)
    return safe.replace(mode=mode, deep=False) if safe else None


def _inside(root: Path, folder: str) -> Path:
    """A folder of the image; one that a link of the image leads out of it is refused."""
    found = Path(os.path.realpath(root / folder.lstrip("/")))
    if not found.is_relative_to(os.path.realpath(root)):
        raise UserError(f"the image's /{folder.lstrip('/')} leads out of it", remedy="Run it with podman or docker")
    return found
