"""Tokens into text as they come: whole characters only, up to a stop word."""

from collections.abc import Sequence

from tokenizers import Tokenizer

LOOK_BACK = 4  # tokens before the new ones, because what a token spells may depend on its neighbours
MOST = 16  # tokens spelled at once: all of them anew for every token would take longer and longer
BROKEN = "\N{REPLACEMENT CHARACTER}"  # what a character looks like of which only some bytes are there


class Spelling:
    def __init__(self, tokenizer: Tokenizer, before: Sequence[int], stop: Sequence[str]) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self._ids = list(before[-LOOK_BACK:])
        self._told = len(tokenizer.decode(self._ids))
        """Characters of these tokens that have been handed on."""
        self._held = ""
        """What may be the beginning of a stop word."""

    def add(self, id: int) -> tuple[str, bool]:
        """The text that is certain by now, and whether a stop word ended it."""
        self._ids.append(id)
        text = self._tokenizer.decode(self._ids)
        if text.endswith(BROKEN):
            return "", False
        new = text[self._told :]
        if len(self._ids) > MOST:
            del self._ids[:-LOOK_BACK]
            text = self._tokenizer.decode(self._ids)
        self._told = len(text)
        return self._until_stop(new)

    def rest(self) -> str:
        """What was held back, when nothing comes after it."""
        new = self._tokenizer.decode(self._ids)[self._told :]
        return self._held + new

    def _until_stop(self, new: str) -> tuple[str, bool]:
        text = self._held + new
        found = [place for place in (text.find(word) for word in self._stop) if place >= 0]
        if found:
            return text[: min(found)], True
        certain = len(text) - max((_overlap(text, word) for word in self._stop), default=0)
        self._held = text[certain:]
        return text[:certain], False


def _overlap(text: str, word: str) -> int:
    """Characters at the end of a text that a word could begin with."""
    return next((n for n in range(min(len(text), len(word) - 1), 0, -1) if text.endswith(word[:n])), 0)
