"""Which keys of a listing a path or a glob means. Keys are as in an object store: parts with slashes between them."""

import glob
from collections.abc import Iterable

from stoker.data.files import fits


def fixed_part(path: str) -> str:
    """The folder that everything a glob means lies in; all of a path that is none."""
    if not glob.has_magic(path):
        return path.strip("/")
    parts: list[str] = []
    for part in path.strip("/").split("/"):
        if glob.has_magic(part):
            break
        parts.append(part)
    return "/".join(parts)


def meant(path: str, keys: Iterable[str]) -> list[str]:
    """Those of the keys, relative to the fixed part, that a folder or a glob means; hidden ones are left out."""
    pattern = path.strip("/").split("/")[len(fixed_part(path).split("/")) if fixed_part(path) else 0 :]
    shown = (key for key in keys if key and not any(part.startswith(".") for part in key.split("/")))
    if not glob.has_magic(path):
        return sorted(shown)
    return sorted(key for key in shown if _within(pattern, key.split("/")))


def _within(pattern: list[str], parts: list[str]) -> bool:
    """A glob may mean the file, or a folder that it is in."""
    return any(fits(pattern, parts[:n]) for n in range(1, len(parts) + 1))
