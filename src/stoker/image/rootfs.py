"""Runs an image without a container tool: unpacks it into a folder, which becomes the root of a namespace."""

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

from stoker.image import enter
from stoker.image.base import BuildProgress
from stoker.image.build import Built
from stoker.image.contents import OPAQUE, WHITEOUT, Unpacked, members
from stoker.image.pull import normal_platform
from stoker.image.registry import Registry
from stoker.spec.errors import UserError

BLOCK = 1 << 20
PROGRAMS = ("unshare", "mount")  # of this machine
DO_NOT_USE = "Do not use that image"


def check_runnable(built: Built) -> None:
    machine = normal_platform(platform.machine())
    if machine != built.platform:
        raise UserError(
            f"the image is for {built.platform}, and this machine is {machine}",
            remedy=f"Build it for {machine}: --platform {machine}",
        )
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        raise UserError(
            f"no container tool is installed, and {missing[0]}, which would replace it, is missing",
            remedy="Install podman, docker or util-linux",
        )


def unpack(built: Built, root: Path, *, progress: BuildProgress) -> None:
    """Unpacks all layers, the lowest first. Nothing is written outside `root`, whatever a layer contains."""
    total, done = sum(layer.size for layer in built.base.layers), 0
    source = built.base.reference
    with closing(Registry(source)) as registry:
        for layer in built.base.layers:
            parts = registry.parts(source.repository, layer.digest)
            unpack_layer(root, Unpacked(parts, f"layer {layer.digest[:19]} of {source}"))
            deque(parts, maxlen=0)  # the digest is verified at the end of the layer
            done += layer.size
            progress("unpack", done, total)
    for own in built.layers:
        with open(own.path, "rb") as file:
            unpack_layer(root, Unpacked(iter(lambda: file.read(BLOCK), b""), own.path.name))


def entering(
    root: Path, workdir: str, command: Sequence[str], environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """The command line and environment that run `command` with `root` as its root, as root in a user namespace.

    Programs of this machine keep its environment: the image's is set after the change of root.
    """
    unshare, mount = (shutil.which(program) or program for program in PROGRAMS)
    namespaces = ["--mount", "--pid", "--fork", "--kill-child"]
    namespaces += ["--user", "--map-root-user"] if os.geteuid() else []
    steps = [sys.executable, "-I", enter.__file__, mount, str(root), workdir, *command]
    return [unshare, *namespaces, *steps], {**os.environ, enter.ENVIRONMENT: json.dumps(dict(environment))}


def unpack_layer(root: Path, layer: Unpacked) -> None:
    try:
        with members(layer) as tar:
            for member in tar:
                if not (member.ischr() or member.isblk()):  # /dev is mounted from this machine
                    _unpack_member(tar, member, root)
    except OSError as e:
        raise UserError(f"{layer.name} cannot be unpacked here: {e}", remedy="Run it with podman or docker") from e


def _unpack_member(tar: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> None:
    folder, _, last = member.name.rstrip("/").rpartition("/")
    if last == OPAQUE:
        where = _inside(root, folder)
        for path in list(where.iterdir()) if where.is_dir() else ():
            _remove(path)
    elif last.startswith(WHITEOUT):
        _remove(_path_in(root, folder, last.removeprefix(WHITEOUT)))
    elif member.isdir():
        _extract(tar, member, root)
    else:
        path = _path_in(root, folder, last)
        _remove(path)
        if member.islnk():
            _link(member, path, root)
        else:
            _extract(tar, member, root)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _link(member: tarfile.TarInfo, path: Path, root: Path) -> None:
    """A hard link to a file of the image. Mode and owner are not set again: that would follow a symlink."""
    folder, _, last = member.linkname.rstrip("/").rpartition("/")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.link(_path_in(root, folder, last), path, follow_symlinks=False)
    except FileNotFoundError:
        raise tarfile.ReadError(f"{member.name} is a hard link to {member.linkname}, which does not exist") from None


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> None:
    """To its path below the root, with links resolved inside it. For root, modes are kept, including set-user-id."""
    folder, _, last = member.name.rstrip("/").rpartition("/")
    path = _inside(root, member.name) if member.isdir() else _path_in(root, folder, last)
    safe = copy.copy(member)
    safe.name = os.path.relpath(path, os.path.realpath(root))
    if os.geteuid():
        safe.mode &= 0o755
    # Python has filters since 3.11.4. The name was checked above, so none is needed.
    checked: Any = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
    tar.extract(safe, os.path.realpath(root), set_attrs=True, numeric_owner=True, **checked)


def _path_in(root: Path, folder: str, last: str) -> Path:
    if last in ("", ".", ".."):
        raise UserError(f"the image contains {folder}/{last}, which points outside the image", remedy=DO_NOT_USE)
    return _inside(root, folder) / last


def _inside(root: Path, folder: str) -> Path:
    """A folder of the image; refused if a link points outside the image."""
    path = Path(os.path.realpath(root / folder.lstrip("/")))
    if not path.is_relative_to(os.path.realpath(root)):
        raise UserError(
            f"the image's /{folder.lstrip('/')} points outside the image", remedy="Run it with podman or docker"
        )
    return path
