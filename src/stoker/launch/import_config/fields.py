"""A manifest and what became of each of its fields: nothing is dropped in silence."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Path = tuple[str | int, ...]
UNUSED = "not used: "
UNKNOWN = UNUSED + "Stoker has nothing that stands for it"
Outcome = tuple[str, str]
"""(field, what became of it)."""


@dataclass(frozen=True, slots=True)
class Field:
    """A place in a manifest, and the value there; None where there is none."""

    manifest: "Manifest"
    path: Path
    value: Any

    def __bool__(self) -> bool:
        return self.value is not None

    def __getitem__(self, key: str | int) -> "Field":
        found = None
        if isinstance(self.value, dict):
            found = self.value.get(key)
        elif isinstance(self.value, list) and isinstance(key, int) and key < len(self.value):
            found = self.value[key]
        return Field(self.manifest, (*self.path, key), found)

    def items(self) -> Iterator[tuple[str, "Field"]]:
        if isinstance(self.value, dict):
            yield from ((key, self[key]) for key in self.value)

    def __iter__(self) -> Iterator["Field"]:
        yield from (self[number] for number in range(len(self.value) if isinstance(self.value, list) else 0))

    def used(self, what: str) -> Any:
        """It became `what`, and all below it that nothing else is said of."""
        if self:
            self.manifest.outcomes.setdefault(self.path, what)
        return self.value

    def unused(self, why: str) -> None:
        self.used(UNUSED + why)


class Manifest:
    def __init__(self, document: dict[str, Any]) -> None:
        self.root = Field(self, (), document)
        self.outcomes: dict[Path, str] = {}

    def report(self) -> list[Outcome]:
        """One line for every leaf, in the order of the manifest."""
        return [(dotted(path), self._outcome(path)) for path in leaves(self.root.value)]

    def _outcome(self, path: Path) -> str:
        """What was said of it, or of the nearest around it."""
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
    words = "".join(f"[{word}]" if isinstance(word, int) else f".{word}" for word in path)
    return words.lstrip(".")
