"""An image run without any container tool: unpacked into a folder, which becomes the root of a namespace."""

import copy
import json
import os
import platform
import shutil
import sys
import tarfile
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from stoker.launch.image import enter
from stoker.launch.image.base import Progress
from stoker.launch.image.build import Built
from stoker.launch.image.contents import OPAQUE, WHITEOUT, Unpacked, members
from stoker.launch.image.pull import normal_platform
from stoker.launch.image.registry import Registry
from stoker.spec.errors import UserError

BLOCK = 1 << 20
PROGRAMS = ("unshare", "mount")  # of this machine
LEADS_OUT = "Do not use that image"


def check_runnable(built: Built) -> None:
    here = normal_platform(platform.machine())
    if here != built.platform:
        raise UserError(
            f"the image is for {built.platform}, and this machine is {here}",
            remedy=f"Build it for {here}: --platform {here}",
        )
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
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
            parts = registry.parts(source.repository, layer.digest)
            lay(root, Unpacked(parts, f"layer {layer.digest[:19]} of {source}"))
            deque(parts, maxlen=0)  # a layer is checked when it has been read to its end
            done += layer.size
            progress("unpack", done, total)
    for own in built.layers:
        with open(own.path, "rb") as file:
            lay(root, Unpacked(iter(lambda: file.read(BLOCK), b""), own.path.name))


def entering(
    root: Path, workdir: str, command: Sequence[str], environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """What runs `command` with `root` as its root, and in which environment; who is not root becomes it inside.

    This machine's programs keep this machine's environment: the image's is set behind the new root.
    """
    unshare, mount = (shutil.which(program) or program for program in PROGRAMS)
    spaces = ["--mount", "--pid", "--fork", "--kill-child"]
    spaces += ["--user", "--map-root-user"] if os.geteuid() else []
    steps = [sys.executable, "-I", enter.__file__, mount, str(root), workdir, *command]
    return [unshare, *spaces, *steps], {**os.environ, enter.ENVIRONMENT: json.dumps(dict(environment))}


def lay(root: Path, layer: Unpacked) -> None:
    try:
        with members(layer) as tar:
            for member in tar:
                if not (member.ischr() or member.isblk()):  # this machine's own devices are put there
                    _lay_one(tar, member, root)
    except OSError as e:
        raise UserError(f"{layer.name} cannot be unpacked here: {e}", remedy="Run it with podman or docker") from e


def _lay_one(tar: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> None:
    folder, _, last = member.name.rstrip("/").rpartition("/")
    if last == OPAQUE:
        where = _inside(root, folder)
        for path in list(where.iterdir()) if where.is_dir() else ():
            _remove(path)
    elif last.startswith(WHITEOUT):
        _remove(_place(root, folder, last.removeprefix(WHITEOUT)))
    elif member.isdir():
        _extract(tar, member, root)
    else:
        place = _place(root, folder, last)
        _remove(place)
        if member.islnk():
            _link(member, place, root)
        else:
            _extract(tar, member, root)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _link(member: tarfile.TarInfo, place: Path, root: Path) -> None:
    """A second name for a file of the image, which has its mode and owner: to set them again would follow a link."""
    folder, _, last = member.linkname.rstrip("/").rpartition("/")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        os.link(_place(root, folder, last), place, follow_symlinks=False)
    except FileNotFoundError:
        raise tarfile.ReadError(f"{member.name} is another name for {member.linkname}, which is not there") from None


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> None:
    """To its place below the root, whatever links lead there. For root the modes are kept, set-user-id too."""
    folder, _, last = member.name.rstrip("/").rpartition("/")
    place = _inside(root, member.name) if member.isdir() else _place(root, folder, last)
    safe = copy.copy(member)
    safe.name = os.path.relpath(place, os.path.realpath(root))
    if os.geteuid():
        safe.mode &= 0o755
    # Python has filters since 3.11.4. The name was checked here, so none is needed.
    checked: Any = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
    tar.extract(safe, os.path.realpath(root), set_attrs=True, numeric_owner=True, **checked)


def _place(root: Path, folder: str, last: str) -> Path:
    if last in ("", ".", ".."):
        raise UserError(f"the image holds {folder}/{last}, which leads out of it", remedy=LEADS_OUT)
    return _inside(root, folder) / last


def _inside(root: Path, folder: str) -> Path:
    """A folder of the image; one that a link of the image leads out of it is refused."""
    found = Path(os.path.realpath(root / folder.lstrip("/")))
    if not found.is_relative_to(os.path.realpath(root)):
        raise UserError(f"the image's /{folder.lstrip('/')} leads out of it", remedy="Run it with podman or docker")
    return found
