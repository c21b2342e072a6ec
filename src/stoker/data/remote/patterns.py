"""Matches the keys of a listing against a path or a glob. Keys are parts separated by slashes."""

import glob
from collections.abc import Iterable

from stoker.data.files import matches_glob


def fixed_prefix(path: str) -> str:
    """The part of a glob before its first wildcard; a path without wildcards as it is."""
    if not glob.has_magic(path):
        return path.strip("/")
    parts: list[str] = []
    for part in path.strip("/").split("/"):
        if glob.has_magic(part):
            break
        parts.append(part)
    return "/".join(parts)


def matching(path: str, keys: Iterable[str]) -> list[str]:
    """The keys, relative to the fixed prefix, that are in a folder or match a glob; hidden ones are left out."""
    pattern = path.strip("/").split("/")[len(fixed_prefix(path).split("/")) if fixed_prefix(path) else 0 :]
    visible = (key for key in keys if key and not any(part.startswith(".") for part in key.split("/")))
    if not glob.has_magic(path):
        return sorted(visible)
    return sorted(key for key in visible if _within(pattern, key.split("/")))


def _within(pattern: list[str], parts: list[str]) -> bool:
    """A glob may match the file, or a folder that it is in."""
    return any(matches_glob(pattern, parts[:n]) for n in range(1, len(parts) + 1))
