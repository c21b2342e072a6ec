"""A document that tracks what became of each of its fields, so that none is dropped silently."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class ConversionOutcome:
    """What became of a field: where its value went, or why it is not used."""

    text: str
    is_used: bool = True

    def names(self, key: str) -> bool:
        """Whether the value went to that key of the run file."""
        return self.is_used and re.match(rf"{re.escape(key)}\b", self.text) is not None

    def __str__(self) -> str:
        return self.text if self.is_used else f"not used: {self.text}"


UNKNOWN = ConversionOutcome("Stoker has no equivalent", is_used=False)
FieldOutcome = tuple[str, ConversionOutcome]
"""(field, what became of it)."""


@dataclass(frozen=True, slots=True)
class Field:
    """A path in a document and the value there; None if there is none."""

    document: "TrackedDocument"
    path: Path
    value: Any

    def __bool__(self) -> bool:
        return self.value is not None

    def __getitem__(self, key: str | int) -> "Field":
        value = None
        if isinstance(self.value, dict):
            value = self.value.get(key)
        elif isinstance(self.value, list) and isinstance(key, int) and key < len(self.value):
            value = self.value[key]
        return Field(self.document, (*self.path, key), value)

    def items(self) -> Iterator[tuple[str, "Field"]]:
        if isinstance(self.value, dict):
            yield from ((key, self[key]) for key in self.value)

    def __iter__(self) -> Iterator["Field"]:
        yield from (self[number] for number in range(len(self.value) if isinstance(self.value, list) else 0))

    def used(self, outcome: str) -> Any:
        """Record what it became; also for the fields below it that have no outcome of their own."""
        self.record(ConversionOutcome(outcome))
        return self.value

    def unused(self, reason: str) -> None:
        self.record(ConversionOutcome(reason, is_used=False))

    def record(self, outcome: "ConversionOutcome") -> None:
        if self:
            self.document.outcomes.setdefault(self.path, outcome)


class TrackedDocument:
    def __init__(self, values: dict[str, Any]) -> None:
        self.root = Field(self, (), values)
        self.outcomes: dict[Path, ConversionOutcome] = {}

    def report(self) -> list[FieldOutcome]:
        """One entry for every leaf, in the order of the document."""
        return [(dotted(path), self._outcome(path)) for path in leaves(self.root.value)]

    def _outcome(self, path: Path) -> ConversionOutcome:
        """The outcome of the field, or of the nearest one above it."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.outcomes:
                return self.outcomes[path[:length]]
        return UNKNOWN


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    inner = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    if not inner:
        yield path
    for key, item in inner:
        yield from leaves(item, (*path, key))


def dotted(path: Path) -> str:
    """`spec.containers[0].image`"""
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
    return text.lstrip(".")
