"""Which files of a folder are sent, and which names may be written. Both ends use the same rules."""

import os
import stat
from pathlib import Path

from stoker.spec.errors import UserError

WORK = ".stoker-transfer"  # folder with partial files and the journal
MANIFEST = ".stoker-manifest.json"  # of a folder with a key: it is complete
RESERVED = (WORK, MANIFEST)
MAX_NAME_BYTES = 255  # of one part of a path


def listing(folder: Path, *, within: Path | None = None) -> dict[str, Path]:
    """All files below, by name. Links may point only to files in `within`, by default the folder itself."""
    home = (within or folder).resolve()
    files: dict[str, Path] = {}
    _add(folder, "", home, files)
    return files


def check_file(path: Path, home: Path) -> None:
    """Raises UserError unless it is a regular file, or a link to one in that folder."""
    try:
        linked = path.is_symlink()
        target = path.resolve(strict=True)
        mode = target.stat().st_mode
    except (OSError, RuntimeError) as e:
        raise UserError(f"{path} cannot be read ({_reason(e)})", remedy="Fix or delete it") from e
    if linked and not target.is_relative_to(home):
        raise UserError(f"{path} is a link out of {home}, to {target}", remedy="Replace the link with the file")
    if stat.S_ISDIR(mode):
        raise UserError(f"{path} is a link to a folder", remedy="Replace the link with the folder")
    if not stat.S_ISREG(mode):
        raise UserError(f"{path} is not a regular file", remedy="Move it elsewhere")


def check_name(name: str) -> str:
    """Raises UserError if the name could lead out of the folder that it is written to."""
    parts = name.split("/")
    if (
        not name
        or "\0" in name
        or any(part in ("", ".", "..") or len(os.fsencode(part)) > MAX_NAME_BYTES for part in parts)
        or parts[0] in RESERVED
    ):
        raise UserError(f"{name!r} is not a valid file name", remedy="Give it another name")
    return name


def under(root: Path, path: Path) -> Path:
    """The path. Raises UserError if `..` or a link in it leads out of the root."""
    if ".." in path.parts or not path.is_relative_to(root):
        raise UserError(f"{path} is not in {root}", remedy=f"Name a path below {root}")
    if not path.resolve().is_relative_to(root.resolve()):
        raise UserError(f"{path} leads out of {root}, to {path.resolve()}", remedy=f"Name a path below {root}")
    return path


def _add(folder: Path, prefix: str, home: Path, files: dict[str, Path]) -> None:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as e:
        raise UserError(f"{folder} cannot be read ({_reason(e)})", remedy="Name a folder that you may read") from e
    for entry in entries:
        name = prefix + entry.name
        if name in RESERVED:
            continue
        if entry.is_dir(follow_symlinks=False):
            _add(Path(entry.path), f"{name}/", home, files)
        else:
            check_file(Path(entry.path), home)
            files[name] = Path(entry.path)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
