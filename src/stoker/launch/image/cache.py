"""What was learnt of layers and made for them, kept by content between builds."""

import os
from pathlib import Path


def folder(kind: str) -> Path:
    """Private to the user."""
    root = Path(os.environ.get("STOKER_CACHE") or Path.home() / ".cache" / "stoker")
    found = root.absolute() / "image" / kind
    found.mkdir(parents=True, exist_ok=True, mode=0o700)
    return found


def write(file: Path, content: bytes) -> None:
    """Whole or not at all: two builds may learn the same at once."""
    half = file.with_name(f"{file.name}.{os.getpid()}")
    half.write_bytes(content)
    half.replace(file)
