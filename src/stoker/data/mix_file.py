"""mix.json: the token sets of a mixture, with weights and locations."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from stoker.data.shards import UnreadableSet
from stoker.rundir.records import typed
from stoker.spec.files import read_regular

MIX_FILE = "mix.json"
MAX_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class MixSource:
    name: str
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    folder: str
    """Relative to the folder of the mixture."""
    key: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Mix:
    version: int
    key: str
    sources: Annotated[list[MixSource], Field(min_length=1)]


def read_mix(folder: Path) -> Mix:
    file = folder / MIX_FILE
    try:
        return typed(Mix, read_regular(file, max_bytes=MAX_BYTES, follow_links=False), max_bytes=MAX_BYTES)
    except (OSError, ValueError) as e:
        raise UnreadableSet(f"{file} is missing or damaged", remedy="Restore it, or prepare the data again") from e
