"""Which files a folder has to send, and which names may be written: the same rules at both ends."""

import os
import stat
from pathlib import Path

from stoker.spec.errors import UserError

WORK = ".stoker-transfer"  # a folder: what is on its way, and what has come
MANIFEST = ".stoker-manifest.json"  # of a folder with a key: it is whole
OWN = (WORK, MANIFEST)
LONGEST = 255  # bytes of one part of a name


def listing(folder: Path, *, within: Path | None = None) -> dict[str, Path]:
    """All files below, by name. Links may lead to files in `within` (the folder itself), and nowhere else."""
    home = (within or folder).resolve()
    found: dict[str, Path] = {}
    _add(folder, "", home, found)
    return found


def check_file(path: Path, home: Path) -> None:
    """That it is a plain file, or a link to one in that folder."""
    try:
        linked = path.is_symlink()
        there = path.resolve(strict=True)
        mode = there.stat().st_mode
    except (OSError, RuntimeError) as e:
        raise UserError(f"{path} cannot be read ({_why(e)})", remedy="Mend or delete it") from e
    if linked and not there.is_relative_to(home):
        raise UserError(f"{path} is a link out of {home}, to {there}", remedy="Put the file itself in its place")
    if stat.S_ISDIR(mode):
        raise UserError(f"{path} is a link to a folder", remedy="Put the folder itself in its place")
    if not stat.S_ISREG(mode):
        raise UserError(f"{path} is no plain file", remedy="Move it elsewhere")


def check_name(name: str) -> str:
    """A name that stays below the folder it is written to."""
    parts = name.split("/")
    if (
        not name
        or "\0" in name
        or any(part in ("", ".", "..") or len(os.fsencode(part)) > LONGEST for part in parts)
        or parts[0] in OWN
    ):
        raise UserError(f"{name!r} is no name for a file", remedy="Give it another name")
    return name


def under(root: Path, path: Path) -> Path:
    """The path, when nothing in it leads out of the root: no `..`, no link."""
    if ".." in path.parts or not path.is_relative_to(root):
        raise UserError(f"{path} is not in {root}", remedy=f"Name a path below {root}")
    if not path.resolve().is_relative_to(root.resolve()):
        raise UserError(f"{path} leads out of {root}, to {path.resolve()}", remedy=f"Name a path below {root}")
    return path


def _add(folder: Path, prefix: str, home: Path, found: dict[str, Path]) -> None:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as e:
        raise UserError(f"{folder} cannot be read ({_why(e)})", remedy="Name a folder that you may read") from e
    for entry in entries:
        name = prefix + entry.name
        if name in OWN:
            continue
        if entry.is_dir(follow_symlinks=False):
            _add(Path(entry.path), f"{name}/", home, found)
        else:
            check_file(Path(entry.path), home)
            found[name] = Path(entry.path)


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
