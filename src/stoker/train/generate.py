"""Text from a model: many rows side by side, each as it would come alone, streamed as it is written."""

import math
import random
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from stoker.spec.errors import RunFailed, UserError
from stoker.spec.model import Model
from stoker.train.decode import Decoder
from stoker.train.models import model_spec
from stoker.train.spelling import Spelling

ROWS = 16  # written side by side; a row that ends makes room for the next
KEPT = 0.75  # of a full context, when it is laid anew over the newest tokens: each time costs a reading of them all


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    tokens: int = 200
    """The most to write after each prompt."""
    temperature: float = 0.8
    """0 takes the likeliest token each time."""
    top_k: int | None = None
    """Draw from so many of the likeliest tokens."""
    top_p: float = 1.0
    """Draw from the likeliest tokens that together have this probability."""
    seed: int = 0
    samples: int = 1
    """Texts for each prompt."""
    stop: tuple[str, ...] = ()
    """Words that end a text, and are cut off."""
    past_end: bool = False
    """Write on where the model ends a document."""

    def __post_init__(self) -> None:
        for name, least in (("tokens", 1), ("samples", 1), ("top_k", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"{name.replace('_', '-')} is {value}", remedy=f"Give {least} or more, or leave it out")
        if not 0 <= self.temperature < math.inf:
            raise UserError(
                f"temperature is {self.temperature}", remedy="Give 0 for the likeliest text, or more, such as 0.8"
            )
        if not 0 < self.top_p <= 1:
            raise UserError(f"top-p is {self.top_p}", remedy="Give a share above 0 and up to 1, such as 0.9")
        if "" in self.stop:
            raise UserError("a stop word is empty", remedy="Give it some text, or leave it out")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    reason: Literal["end", "stop", "length"]
    """The model ended the document, a stop word came, or `tokens` were written."""
    ids: list[int]
    """What was drawn, a stop word's tokens too."""
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    row: int
    """Rows are numbered by prompt, then by sample."""
    text: str
    """Whole characters, in order."""
    ending: Ending | None
    """With the last piece of a row."""


def generate(
    model: nn.Module,
    shape: Model,
    tokenizer: Tokenizer,
    end: int,
    prompts: Sequence[str],
    settings: Settings,
    begin: int | None = None,
) -> Iterator[Piece]:
    """Continue each prompt; an empty one begins a document. Pieces of different rows come mixed.

    `end` is the token that ends a document, `begin` the one that every text begins with, if there is one. A row depends
    on its prompt, its sample's number and the settings alone. What outgrows the model's context is continued from its
    newest tokens.
    """
    assert shape.vocab is not None
    rows: list[_Row] = []
    for prompt in prompts:
        ids = [] if begin is None else [begin]
        ids = ids + tokenizer.encode(prompt, add_special_tokens=False).ids or [end]
        if max(ids) >= shape.vocab:
            raise UserError(
                f"the tokenizer gives token {max(ids)}, and the model knows {shape.vocab} tokens",
                remedy="Name the tokenizer that it was trained with: --tokenizer DIR",
            )
        rows += [
            _Row(len(rows) + sample, sample, ids, Spelling(tokenizer, ids, settings.stop), end, settings)
            for sample in range(settings.samples)
        ]
    usable = min(shape.vocab, 1 + max(tokenizer.get_vocab().values()))
    return _write(model, shape, usable, rows, settings)


def _write(model: nn.Module, shape: Model, usable: int, rows: "list[_Row]", settings: Settings) -> Iterator[Piece]:
    context, waiting = shape.context, deque(rows)
    live = [waiting.popleft() for _ in range(min(ROWS, len(rows)))]
    length = min(context, max((len(row.ids) for row in rows), default=0) + settings.tokens)
    decoder = model_spec(shape.family).decoder(model, len(live), length)
    _read(decoder, {place: row.window(context) for place, row in enumerate(live)})
    while live:
        full = {place: row.window(max(1, int(KEPT * context))) for place, row in enumerate(live) if row.seen == context}
        _read(decoder, full)
        logits = decoder.step(torch.tensor([row.ids[-1] for row in live]))[:, :usable]
        ended = []
        for place, (row, id) in enumerate(zip(live, _choose(logits, live, settings), strict=True)):
            piece = row.add(id)
            if piece.text or piece.ending:
                yield piece
            if piece.ending:
                ended.append(place)
        if ended:
            live = _replace(decoder, live, ended, waiting, context)


def _read(decoder: Decoder, windows: Mapping[int, list[int]]) -> None:
    alike = defaultdict(list)
    for place, window in windows.items():
        alike[len(window)].append(place)
    for places in alike.values():
        decoder.read(places, torch.tensor([windows[place] for place in places], dtype=torch.int64))


def _replace(
    decoder: Decoder, live: "list[_Row]", ended: list[int], waiting: "deque[_Row]", context: int
) -> "list[_Row]":
    """Rows that wait take the places of those that ended; then the rest of these go."""
    fresh = {place: waiting.popleft() for place in ended[: len(waiting)]}
    _read(decoder, {place: row.window(context) for place, row in fresh.items()})
    live = [fresh.get(place, row) for place, row in enumerate(live)]
    kept = [place for place in range(len(live)) if place in fresh or place not in ended]
    if len(kept) < len(live):
        decoder.keep(kept)
    return [live[place] for place in kept]


def _choose(logits_BV: Tensor, live: "list[_Row]", settings: Settings) -> list[int]:
    if settings.temperature == 0:
        best_B, chosen_B = logits_BV.max(dim=1)
        _check(best_B)
    else:
        chances_B = torch.tensor([row.chance.random() for row in live], dtype=torch.float64)
        chosen_B = draw(logits_BV.double().cpu(), chances_B, settings)
    ids: list[int] = chosen_B.tolist()
    return ids


def draw(logits_BV: Tensor, chances_B: Tensor, settings: Settings) -> Tensor:
    """Where a number from [0, 1) falls in each row, when its tokens share that range by their probabilities."""
    ids_BV, V = None, logits_BV.shape[1]
    if settings.top_k is not None and settings.top_k < V:
        logits_BV, ids_BV = logits_BV.topk(settings.top_k)
    elif settings.top_p < 1:
        logits_BV, ids_BV = logits_BV.sort(descending=True)
    largest_B1 = logits_BV.amax(dim=1, keepdim=True)
    _check(largest_B1)
    shares_BV = torch.softmax((logits_BV - largest_B1) / settings.temperature, dim=1)
    sums_BV = shares_BV.cumsum(dim=1)
    last_B1 = torch.full_like(largest_B1, sums_BV.shape[1] - 1, dtype=torch.int64)
    if settings.top_p < 1:
        last_B1 = (sums_BV - shares_BV < settings.top_p).sum(dim=1, keepdim=True) - 1
    places_B1 = (sums_BV <= chances_B[:, None] * sums_BV.gather(1, last_B1)).sum(dim=1, keepdim=True)
    places_B1 = places_B1.minimum(last_B1)  # a chance next to 1 may be rounded up to it
    return (places_B1 if ids_BV is None else ids_BV.gather(1, places_B1))[:, 0]


def _check(best: Tensor) -> None:
    if not math.isfinite(best.sum()):
        raise RunFailed(
            "the model gives no numbers: its weights are not finite",
            remedy="Lower optim.lr and train again with --new, or take an earlier checkpoint with --step N",
        )


class _Row:
    def __init__(
        self, number: int, sample: int, prompt: list[int], spelling: Spelling, end: int, settings: Settings
    ) -> None:
        self.number, self.settings = number, settings
        self.ids = list(prompt)
        """The prompt and what has been drawn."""
        self.seen = 0
        """How many of the newest the decoder holds."""
        self.chance = random.Random(f"{settings.seed} {sample}")
        self._spelling = spelling
        self._prompt, self._end = len(prompt), None if settings.past_end else end
        self._began: float | None = None

    def window(self, most: int) -> list[int]:
        """What the decoder is to read before it is given the newest token."""
        self._began = self._began or time.monotonic()
        window = self.ids[-most:-1]
        self.seen = len(window)
        return window

    def add(self, id: int) -> Piece:
        self.seen += 1
        if id == self._end:
            return self._piece(self._spelling.rest(), "end")
        self.ids.append(id)
        text, stopped = self._spelling.add(id)
        if stopped:
            return self._piece(text, "stop")
        if len(self.ids) - self._prompt == self.settings.tokens:
            return self._piece(text + self._spelling.rest(), "length")
        return self._piece(text, None)

    def _piece(self, text: str, reason: Literal["end", "stop", "length"] | None) -> Piece:
        ending = None
        if reason is not None and self._began is not None:
            seconds = time.monotonic() - self._began
            ending = Ending(reason=reason, ids=self.ids[self._prompt :], seconds=seconds)
        return Piece(row=self.number, text=text, ending=ending)
