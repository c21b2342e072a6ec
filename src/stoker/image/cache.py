"""A cache between builds: the contents of layers, and package layers, by digest."""

import os
from pathlib import Path


def folder(kind: str) -> Path:
    """Private to the user."""
    root = Path(os.environ.get("STOKER_CACHE") or Path.home() / ".cache" / "stoker")
    path = root.absolute() / "image" / kind
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def write(file: Path, content: bytes) -> None:
    """Atomic: two builds may write the same file at once."""
    temporary = file.with_name(f"{file.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(file)
