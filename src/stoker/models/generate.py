"""Text from a model: many rows in one batch, each as it would be generated alone, streamed token by token."""

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

from stoker.models import model_spec
from stoker.models.decoder import Decoder, MakeDecoder
from stoker.spec.errors import RunFailed, UserError
from stoker.spec.model import Model

BATCH_ROWS = 16  # generated together; when a row ends, the next prompt takes its slot
# When the context is full, the decoder starts again from the newest tokens, this share of the context. It has to read
# all of them each time.
KEPT_CONTEXT = 0.75
DECODE_LOOK_BACK = 4  # tokens decoded before the new ones, since a token's text may depend on its neighbours
MAX_DECODED = 16  # tokens decoded at a time: decoding a whole text for every token would get slower and slower
BROKEN = "\N{REPLACEMENT CHARACTER}"  # how an incomplete character is decoded


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    tokens: int = 200
    """The most to generate after each prompt."""
    temperature: float = 0.8
    """0 takes the most likely token each time."""
    top_k: int | None = None
    """Sample from this many most likely tokens."""
    top_p: float = 1.0
    """Sample from the most likely tokens that together have this probability."""
    seed: int = 0
    samples: int = 1
    """Texts for each prompt."""
    stop: tuple[str, ...] = ()
    """Strings that end a text, and are cut off."""
    past_end: bool = False
    """Continue after the end of a document."""

    def __post_init__(self) -> None:
        for name, minimum in (("tokens", 1), ("samples", 1), ("top_k", 1)):
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise UserError(
                    f"{name.replace('_', '-')} is {value}", remedy=f"Give {minimum} or more, or leave it out"
                )
        if not 0 <= self.temperature < math.inf:
            raise UserError(
                f"temperature is {self.temperature}", remedy="Give 0 for the most likely text, or more, such as 0.8"
            )
        if not 0 < self.top_p <= 1:
            raise UserError(f"top-p is {self.top_p}", remedy="Give a share above 0 and up to 1, such as 0.9")
        if "" in self.stop:
            raise UserError("a stop word is empty", remedy="Give it some text, or leave it out")


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationEnd:
    reason: Literal["end", "stop", "length"]
    """The model ended the document, a stop string came up, or `tokens` were generated."""
    ids: list[int]
    """The sampled tokens, those of a stop string included."""
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TextPiece:
    row: int
    """Rows are numbered by prompt, then by sample."""
    text: str
    """Complete characters, in order."""
    ending: GenerationEnd | None
    """With the last piece of a row."""


def generate(
    model: nn.Module,
    shape: Model,
    tokenizer: Tokenizer,
    end: int,
    prompts: Sequence[str],
    settings: Settings,
    begin: int | None = None,
    *,
    decoder: MakeDecoder | None = None,
) -> Iterator[TextPiece]:
    """Continue each prompt; an empty prompt starts a document. Pieces of different rows are interleaved.

    `end` is the token that ends a document, `begin` the token that every text begins with, if any. A row depends
    only on its prompt, its sample number and the settings. A text that outgrows the model's context is continued from
    its newest tokens. `decoder` replaces the decoder of the model's family.
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
            _Row(len(rows) + sample, sample, ids, Detokenizer(tokenizer, ids, settings.stop), end, settings)
            for sample in range(settings.samples)
        ]
    usable = min(shape.vocab, 1 + max(tokenizer.get_vocab().values()))
    make_decoder = decoder or model_spec(shape.family).decoder
    return _write(model, make_decoder, shape, usable, rows, settings)


def _write(
    model: nn.Module, make_decoder: MakeDecoder, shape: Model, usable: int, rows: "list[_Row]", settings: Settings
) -> Iterator[TextPiece]:
    context, waiting = shape.context, deque(rows)
    kept = max(1, int(KEPT_CONTEXT * context))
    live = [waiting.popleft() for _ in range(min(BATCH_ROWS, len(rows)))]
    length = min(context, max((len(row.ids) for row in rows), default=0) + settings.tokens)
    decoder = make_decoder(model, len(live), length)
    _read_windows(decoder, {slot: row.window(context) for slot, row in enumerate(live)})
    while live:
        full = {slot: row.window(kept) for slot, row in enumerate(live) if row.seen == context}
        _read_windows(decoder, full)
        logits = decoder.step(torch.tensor([row.ids[-1] for row in live]))[:, :usable]
        ended = []
        for slot, (row, id) in enumerate(zip(live, _choose(logits, live, settings), strict=True)):
            piece = row.add(id)
            if piece.text or piece.ending:
                yield piece
            if piece.ending:
                ended.append(slot)
        if ended:
            live = _replace(decoder, live, ended, waiting, context)


def _read_windows(decoder: Decoder, windows: Mapping[int, list[int]]) -> None:
    same_length = defaultdict(list)
    for slot, window in windows.items():
        same_length[len(window)].append(slot)
    for slots in same_length.values():
        decoder.read(slots, torch.tensor([windows[slot] for slot in slots], dtype=torch.int64))


def _replace(
    decoder: Decoder, live: "list[_Row]", ended: list[int], waiting: "deque[_Row]", context: int
) -> "list[_Row]":
    """Waiting rows take the slots of those that ended; slots without a new row are dropped."""
    replacements = {slot: waiting.popleft() for slot in ended[: len(waiting)]}
    _read_windows(decoder, {slot: row.window(context) for slot, row in replacements.items()})
    live = [replacements.get(slot, row) for slot, row in enumerate(live)]
    kept = [slot for slot in range(len(live)) if slot in replacements or slot not in ended]
    if len(kept) < len(live):
        decoder.keep(kept)
    return [live[slot] for slot in kept]


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
    """Sample a token for each row: inverse transform sampling, with one number from [0, 1) per row."""
    ids_BV, V = None, logits_BV.shape[1]
    if settings.top_k is not None and settings.top_k < V:
        logits_BV, ids_BV = logits_BV.topk(settings.top_k)
    elif settings.top_p < 1:
        logits_BV, ids_BV = logits_BV.sort(descending=True)
    largest_B1 = logits_BV.amax(dim=1, keepdim=True)
    _check(largest_B1)
    probs_BV = torch.softmax((logits_BV - largest_B1) / settings.temperature, dim=1)
    sums_BV = probs_BV.cumsum(dim=1)
    last_B1 = torch.full_like(largest_B1, sums_BV.shape[1] - 1, dtype=torch.int64)
    if settings.top_p < 1:
        last_B1 = (sums_BV - probs_BV < settings.top_p).sum(dim=1, keepdim=True) - 1
    places_B1 = (sums_BV <= chances_B[:, None] * sums_BV.gather(1, last_B1)).sum(dim=1, keepdim=True)
    places_B1 = places_B1.minimum(last_B1)  # a number just below 1 may be rounded up to 1
    return (places_B1 if ids_BV is None else ids_BV.gather(1, places_B1))[:, 0]


def _check(best: Tensor) -> None:
    if not math.isfinite(best.sum()):
        raise RunFailed(
            "the model gives no numbers: its weights are not finite",
            remedy="Lower optim.lr and train again with --new, or take an earlier checkpoint with --step N",
        )


class Detokenizer:
    """Tokens to text, one token at a time: complete characters only, up to a stop string."""

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int], stop: Sequence[str]) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self._ids = list(before[-DECODE_LOOK_BACK:])
        self._returned = len(tokenizer.decode(self._ids))
        """Characters of these tokens that have been returned."""
        self._held_back = ""
        """Text that may be the beginning of a stop string."""

    def add(self, id: int) -> tuple[str, bool]:
        """The text that is certain by now, and whether a stop string ended it."""
        self._ids.append(id)
        text = self._tokenizer.decode(self._ids)
        if text.endswith(BROKEN):
            return "", False
        new = text[self._returned :]
        if len(self._ids) > MAX_DECODED:
            del self._ids[:-DECODE_LOOK_BACK]
            text = self._tokenizer.decode(self._ids)
        self._returned = len(text)
        return self._until_stop(new)

    def rest(self) -> str:
        """The text that was held back, at the end."""
        new = self._tokenizer.decode(self._ids)[self._returned :]
        return self._held_back + new

    def _until_stop(self, new: str) -> tuple[str, bool]:
        text = self._held_back + new
        stops = [position for position in (text.find(stop) for stop in self._stop) if position >= 0]
        if stops:
            return text[: min(stops)], True
        certain = len(text) - max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held_back = text[certain:]
        return text[:certain], False


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of the text that a stop string could begin with."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)


class _Row:
    def __init__(
        self, number: int, sample: int, prompt: list[int], detokenizer: Detokenizer, end: int, settings: Settings
    ) -> None:
        self.number, self.settings = number, settings
        self.ids = list(prompt)
        """The prompt and the sampled tokens."""
        self.seen = 0
        """How many of the newest tokens the decoder holds."""
        self.chance = random.Random(f"{settings.seed} {sample}")
        self._detokenizer = detokenizer
        self._prompt, self._end = len(prompt), None if settings.past_end else end
        self._began: float | None = None

    def window(self, most: int) -> list[int]:
        """The tokens that the decoder reads before the newest token."""
        self._began = self._began or time.monotonic()
        window = self.ids[-most:-1]
        self.seen = len(window)
        return window

    def add(self, id: int) -> TextPiece:
        self.seen += 1
        if id == self._end:
            return self._piece(self._detokenizer.rest(), "end")
        self.ids.append(id)
        text, stopped = self._detokenizer.add(id)
        if stopped:
            return self._piece(text, "stop")
        if len(self.ids) - self._prompt == self.settings.tokens:
            return self._piece(text + self._detokenizer.rest(), "length")
        return self._piece(text, None)

    def _piece(self, text: str, reason: Literal["end", "stop", "length"] | None) -> TextPiece:
        ending = None
        if reason is not None and self._began is not None:
            seconds = time.monotonic() - self._began
            ending = GenerationEnd(reason=reason, ids=self.ids[self._prompt :], seconds=seconds)
        return TextPiece(row=self.number, text=text, ending=ending)
