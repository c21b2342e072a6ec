"""Splits the data into work units: consecutive parts, the same for any number of workers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stoker.data.files import DataFile
from stoker.data.remote import problem_of
from stoker.data.remote.addresses import shown
from stoker.data.sources import source_of
from stoker.data.sources.document import BadRecords, Piece, Span
from stoker.spec.errors import UserError

MIN_UNIT_BYTES = 1 << 20
MAX_UNITS = 1024  # enough for any number of workers, few enough for an index


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    number: int
    parts: list[tuple[DataFile, Span]]

    @property
    def size(self) -> int:
        return sum(span.size for _, span in self.parts)


def plan(files: list[DataFile]) -> list[Unit]:
    target = max(MIN_UNIT_BYTES, sum(file.size for file in files) // MAX_UNITS)
    units: list[Unit] = []
    parts: list[tuple[DataFile, Span]] = []
    size = 0
    for file in files:
        for span in spans(file, target):
            parts.append((file, span))
            size += span.size
            if size >= target:
                units.append(Unit(number=len(units), parts=parts))
                parts, size = [], 0
    if parts:
        units.append(Unit(number=len(units), parts=parts))
    return units


def one_per_file(files: Sequence[DataFile]) -> list[Unit]:
    return [Unit(number=number, parts=[(file, Span(size=file.size))]) for number, file in enumerate(files)]


def spans(file: DataFile, target: int) -> list[Span]:
    """A remote file is one span: it is not read before its turn."""
    return [Span(size=file.size)] if file.url else source_of(file.format).spans(file.path, file.size, target)


def pieces(unit: Unit, field: str, bad: BadRecords) -> Iterator[tuple[int, Piece]]:
    """The text of a unit, in order, each piece with the number of its part. Remote files have been fetched."""
    for number, (file, span) in enumerate(unit.parts):
        try:
            if problem := problem_of(file):
                bad.add(shown(str(file.url)), problem, remedy="Remove it from data.path")
                continue
            for piece in source_of(file.format).pieces(file.path, span, field, bad):
                yield number, piece
        except UserError as e:
            if file.url is None:
                raise
            raise UserError(e.problem.replace(str(file.path), shown(file.url)), remedy=e.remedy) from e
