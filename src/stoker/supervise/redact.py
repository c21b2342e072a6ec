"""What must not be read in a log: the values of secrets."""

import json
from collections.abc import Iterable

SHORTEST = 4  # characters: a shorter value would blot out half of every log, and hides nothing
BLOT = b"***"


class Redactor:
    """Replaces the values, each line of those that have several, and the forms in which programs quote them."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        lines = {line.strip() for value in values for line in value.splitlines()}
        forms = {form for line in lines for form in (line, repr(line)[1:-1], json.dumps(line)[1:-1])}
        words = {form.encode(errors="surrogateescape") for form in forms if len(form) >= SHORTEST}
        self._words = sorted(words, key=len, reverse=True)  # one may hold another

    def __call__(self, data: bytes) -> bytes:
        for word in self._words:
            data = data.replace(word, BLOT)
        return data

    def begun(self, data: bytes) -> int:
        """How many bytes at the end of it may be the beginning of a secret."""
        return max((_overlap(data, word) for word in self._words), default=0)

    def text(self, text: str) -> str:
        return self(text.encode(errors="surrogateescape")).decode(errors="surrogateescape")


def _overlap(data: bytes, word: bytes) -> int:
    at = data.find(word[:1], max(0, len(data) - len(word) + 1))
    while at >= 0:
        if word.startswith(data[at:]):
            return len(data) - at
        at = data.find(word[:1], at + 1)
    return 0
