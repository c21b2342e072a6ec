"""The work of a prepare, cut into units: consecutive parts of the data, the same however many workers there are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stoker.data.files import DataFile
from stoker.data.remote import problem_of
from stoker.data.remote.addresses import shown
from stoker.data.sources import SOURCES
from stoker.data.sources.document import BadRecords, Piece, Span
from stoker.spec.errors import UserError

SMALLEST = 1 << 20
MOST = 1024  # units: enough for any machine to share out, few enough for an index to list


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    number: int
    parts: list[tuple[DataFile, Span]]

    @property
    def size(self) -> int:
        return sum(span.size for _, span in self.parts)


def plan(files: list[DataFile]) -> list[Unit]:
    target = max(SMALLEST, sum(file.size for file in files) // MOST)
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


def whole(files: Sequence[DataFile]) -> list[Unit]:
    """A unit for each file."""
    return [Unit(number=number, parts=[(file, Span(size=file.size))]) for number, file in enumerate(files)]


def spans(file: DataFile, target: int) -> list[Span]:
    """What is fetched from elsewhere is one span: it is not looked into before its turn comes."""
    return [Span(size=file.size)] if file.url else SOURCES[file.format].spans(file.path, file.size, target)


def pieces(unit: Unit, field: str, bad: BadRecords) -> Iterator[tuple[int, Piece]]:
    """The text of a unit, in order, each piece with the number of its part. Files from elsewhere have been fetched."""
    for number, (file, span) in enumerate(unit.parts):
        try:
            if problem := problem_of(file):
                bad.add(shown(str(file.url)), problem, remedy="Leave it out of data.path")
                continue
            for piece in SOURCES[file.format].pieces(file.path, span, field, bad):
                yield number, piece
        except UserError as e:
            if file.url is None:
                raise
            raise UserError(e.problem.replace(str(file.path), shown(file.url)), remedy=e.remedy) from e
