"""Predict masked words, and whether one sentence follows another. A row is a record of a set of pairs.

Padding is not computed: a worker's rows are sorted by their real length, each micro-batch is cut to its longest, and
logits are computed at the masked places alone. Lengths are rounded up, so that there are few shapes to compile.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from stoker.data.masking import NONE, Masking, Masks, draw, fixed
from stoker.data.pairs import AnySet, Fields, Numbers, PairSet, fields
from stoker.data.tokenizer import load_folder
from stoker.data.wordpiece import Words, words_of
from stoker.spec import run as spec
from stoker.train.batches import Batch
from stoker.train.objectives import IGNORED, Counts, Head, Inputs, cross_entropies

STEP = 32  # what a length is rounded up to
SHAPES = 8  # lengths at most, however long a sequence
assert NONE == IGNORED


class Masked:
    parts = ("loss_mlm", "loss_nsp")
    weights = (1.0, 1.0)

    def __init__(self, length: int, masking: Masking, words: Words | None, *, packs: bool = False) -> None:
        """`words` are those of the rows' tokenizer; rows that bring their masks need none.

        `packs`: the model may leave out what padding is left. It is told where the tokens are, in more shapes.
        """
        self.length, self.masking, self.words, self.packs = length, masking, words, packs
        self.step = max(STEP, -(-length // SHAPES))
        self._last: tuple[Batch, Fields, Masks] | None = None

    def count(self, batch: Batch) -> Counts:
        rows, masks = self._read(batch)
        live = batch.live
        masked = int((masks.goals_NL[:live] != NONE).sum())
        return Counts(tokens=int(rows.real_N[:live].sum()), targets=(masked, live))

    def cut(self, batch: Batch, *, number: int, size: int) -> Iterator[Inputs]:
        rows, masks = self._read(batch)
        order = np.concatenate(
            [np.argsort(rows.real_N[: batch.live], kind="stable"), np.arange(batch.live, len(batch.rows))]
        )
        for start in range(0, number * size, size):
            yield self._inputs(rows, masks, order[start : start + size], live=batch.live)

    def heads(
        self, model: nn.Module, tokens_BT: Tensor, segments_BT: Tensor, lengths_B: Tensor, real_N: Tensor,
        places_M: Tensor, goals_M: Tensor, labels_B: Tensor,
    ) -> list[Head]:  # fmt: skip
        words_MV, next_B2 = model(tokens_BT, segments_BT, lengths_B, places_M, real_N if self.packs else None)
        return [Head(words_MV, goals_M), Head(next_B2, labels_B)]

    def loss(self, model: nn.Module, *inputs: Tensor) -> Tensor:
        return cross_entropies(self.heads(model, *inputs))

    def _read(self, batch: Batch) -> tuple[Fields, Masks]:
        """Masks are drawn once for a batch: it is counted, and then cut."""
        if self._last is None or self._last[0] is not batch:
            rows = fields(batch.rows.numpy(), self.length)
            self._last = batch, rows, self._masks(rows, batch)
        return self._last[1:]

    def _masks(self, rows: Fields, batch: Batch) -> Masks:
        if rows.positions_NP.shape[1]:
            return fixed(rows)
        assert self.words is not None
        spare = np.zeros(len(batch.rows) - batch.live, np.int64)
        samples, epochs = np.append(batch.samples, spare), np.append(batch.epochs[: batch.live], spare)
        return draw(rows, samples, epochs, self.masking, self.words)

    def _inputs(self, rows: Fields, masks: Masks, chosen: Numbers, *, live: int) -> Inputs:
        lengths = np.maximum(1, rows.real_N[chosen])  # a row without a token has nothing to attend to
        T = min(self.length, _up(int(lengths.max()), self.step))
        at = np.arange(T)
        real = at < lengths[:, None]
        goals = np.where((chosen < live)[:, None], masks.goals_NL[chosen, :T], IGNORED).reshape(-1)
        places = np.flatnonzero(goals != IGNORED)
        most = len(chosen) * min(self.masking.predictions, max(1, round(T * self.masking.rate)))
        arrays = (
            masks.tokens_NL[chosen, :T],
            (real & (at >= rows.second_N[chosen, None])).astype(np.int64),
            lengths,
            _padded(np.flatnonzero(real), -(-real.size // SHAPES), 0) if self.packs else np.empty(0, np.int64),
            _padded(places, most, 0),
            _padded(goals[places], most, IGNORED),
            np.where(chosen < live, rows.label_N[chosen], IGNORED),
        )
        return tuple(torch.from_numpy(array) for array in arrays)


def objective(tokens: AnySet, settings: spec.Objective, seed: int, device: torch.device) -> Masked:
    assert isinstance(tokens, PairSet)
    masking = Masking(
        seed=seed,
        static=settings.masking == "static",
        whole_words=settings.whole_words,
        predictions=tokens.index.predictions or settings.predictions,
        rate=settings.rate,
    )
    drawn = not tokens.index.predictions
    words = words_of(load_folder(tokens.tokenizer).tokenizer, tokens.tokenizer) if drawn else None
    return Masked(tokens.index.length, masking, words, packs=device.type == "cuda")


def _up(number: int, step: int) -> int:
    return -(-number // step) * step


def _padded(values: Numbers, step: int, filling: int) -> Numbers:
    """To a whole number of steps, one at least."""
    return np.pad(values, (0, max(step, _up(len(values), step)) - len(values)), constant_values=filling)
