"""Flips one bit of a file, as a failing disk does."""

from pathlib import Path


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
