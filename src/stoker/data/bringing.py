"""The files of a unit that come from elsewhere: here while it is worked on, and no longer."""

from collections.abc import Callable, Iterator
from pathlib import Path

from stoker.data.claims import writing
from stoker.data.encode import Advance
from stoker.data.remote import fetch_all, forget
from stoker.data.units import Unit


def brought(folder: Path, work: Callable[[Unit], Iterator[Advance]], unit: Unit) -> Iterator[Advance]:
    """`folder` is where they are kept: when there is no room, it is named."""
    files = [file for file, _ in unit.parts]
    with writing(folder):
        yield from (Advance(0, 0, fetched=arrived) for arrived in fetch_all(files))
        yield from work(unit)
        for file in files:
            forget(file)
