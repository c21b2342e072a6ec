"""mix.json: which token sets a mixture draws from, how often, and where they are. No numpy is needed to read it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from stoker.rundir.files import read_regular
from stoker.rundir.records import typed
from stoker.spec.errors import UserError

MIX_FILE = "mix.json"
LARGEST = 16 << 20  # bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class MixSource:
    name: str
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    folder: str
    """From the folder of the mixture."""
    key: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Mix:
    version: int
    key: str
    sources: Annotated[list[MixSource], Field(min_length=1)]


def read_mix(folder: Path) -> Mix:
    file = folder / MIX_FILE
    try:
        return typed(Mix, read_regular(file, max_bytes=LARGEST), max_bytes=LARGEST)
    except (OSError, ValueError) as e:
        raise UserError(f"{file} is missing or damaged", remedy="Restore it, or prepare the data again") from e
