"""One bit of a file, the other way round: what a failing disk does."""

from pathlib import Path


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
