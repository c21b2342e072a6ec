"""Predict masked words, and whether the second sentence follows the first. A row is a record of a pair set.

Little is computed on padding: a worker's rows are sorted by length, each micro-batch is cut to its longest row, and
logits are computed only at the masked positions. Lengths are rounded up, so that few shapes are compiled.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from stoker.data.any_set import AnySet
from stoker.data.bert.masking import NONE, Masking, Masks, draw, fixed
from stoker.data.bert.pairs import Fields, Numbers, PairSet, fields
from stoker.data.tokenizer import load_folder
from stoker.data.wordpiece import MaskingVocabulary, masking_vocabulary
from stoker.spec import run as spec
from stoker.train.batches import TrainingBatch
from stoker.train.objectives import IGNORED, Counts, Head, Inputs, cross_entropies

LENGTH_STEP = 32  # lengths are rounded up to a multiple of it
MAX_LENGTHS = 8  # different lengths
assert NONE == IGNORED


class Masked:
    parts = ("loss_mlm", "loss_nsp")
    weights = (1.0, 1.0)

    def __init__(
        self, length: int, masking: Masking, vocabulary: MaskingVocabulary | None, *, packs: bool = False
    ) -> None:
        """`vocabulary` is that of the rows' tokenizer; None for rows that come with masks.

        `packs`: the model may skip the remaining padding, so it also gets the positions of the tokens, in more shapes.
        """
        self.length, self.masking, self.vocabulary, self.packs = length, masking, vocabulary, packs
        self.step = max(LENGTH_STEP, -(-length // MAX_LENGTHS))
        self._last: tuple[TrainingBatch, Fields, Masks] | None = None

    def count(self, batch: TrainingBatch) -> Counts:
        rows, masks = self._read(batch)
        live = batch.live
        masked = int((masks.goals_NL[:live] != NONE).sum())
        return Counts(tokens=int(rows.real_N[:live].sum()), targets=(masked, live))

    def cut(self, batch: TrainingBatch, *, number: int, size: int) -> Iterator[Inputs]:
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

    def _read(self, batch: TrainingBatch) -> tuple[Fields, Masks]:
        """Masks are drawn once per batch, which is counted and then cut."""
        if self._last is None or self._last[0] is not batch:
            rows = fields(batch.rows.numpy(), self.length)
            self._last = batch, rows, self._masks(rows, batch)
        return self._last[1:]

    def _masks(self, rows: Fields, batch: TrainingBatch) -> Masks:
        if rows.positions_NP.shape[1]:
            return fixed(rows)
        assert self.vocabulary is not None
        padding = np.zeros(len(batch.rows) - batch.live, np.int64)
        samples, epochs = np.append(batch.samples, padding), np.append(batch.epochs[: batch.live], padding)
        return draw(rows, samples, epochs, self.masking, self.vocabulary)

    def _inputs(self, rows: Fields, masks: Masks, chosen: Numbers, *, live: int) -> Inputs:
        lengths = np.maximum(1, rows.real_N[chosen])  # attention needs at least one token
        T = min(self.length, _round_up(int(lengths.max()), self.step))
        at = np.arange(T)
        real = at < lengths[:, None]
        goals = np.where((chosen < live)[:, None], masks.goals_NL[chosen, :T], IGNORED).reshape(-1)
        positions = np.flatnonzero(goals != IGNORED)
        max_masked = len(chosen) * min(self.masking.predictions, max(1, round(T * self.masking.rate)))
        arrays = (
            masks.tokens_NL[chosen, :T],
            (real & (at >= rows.second_N[chosen, None])).astype(np.int64),
            lengths,
            _padded(np.flatnonzero(real), -(-real.size // MAX_LENGTHS), 0) if self.packs else np.empty(0, np.int64),
            _padded(positions, max_masked, 0),
            _padded(goals[positions], max_masked, IGNORED),
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
    vocabulary = masking_vocabulary(load_folder(tokens.tokenizer).tokenizer, tokens.tokenizer) if drawn else None
    return Masked(tokens.index.length, masking, vocabulary, packs=device.type == "cuda")


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step


def _padded(values: Numbers, step: int, filling: int) -> Numbers:
    """Padded to a multiple of `step`, at least `step`."""
    return np.pad(values, (0, max(step, _round_up(len(values), step)) - len(values)), constant_values=filling)
