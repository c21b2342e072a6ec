"""Whether the files of a prepared set are what its index says."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from stoker.spec.errors import UserError


class Hashed(Protocol):
    @property
    def file(self) -> str: ...

    @property
    def sha256(self) -> str: ...


def check_sizes(folder: Path, sizes: Mapping[str, int]) -> None:
    """Costs a look at each file, whatever its length."""
    for name, wanted in sizes.items():
        file = folder / name
        size = file.stat().st_size if file.is_file() else None
        if size != wanted:
            found = "is missing" if size is None else f"has {size} bytes, and should have {wanted}"
            raise UserError(f"{file} {found}", remedy=f"Delete {folder} and prepare the data again")


def check_hashes(folder: Path, files: Iterable[Hashed]) -> None:
    """Reads every file."""
    for one in files:
        with open(folder / one.file, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != one.sha256:
                raise UserError(
                    f"{folder / one.file} is damaged: its sha256 is not the one in index.json",
                    remedy=f"Delete {folder} and prepare the data again",
                )
