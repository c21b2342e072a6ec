"""Predict the next token. A row is a sequence and the token after it."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from stoker.data.any_set import AnySet
from stoker.spec import run as spec
from stoker.train.batches import TrainingBatch
from stoker.train.objectives import IGNORED, Counts, Head, Inputs, cross_entropies


class Causal:
    parts = ("loss",)
    weights = (1.0,)

    def count(self, batch: TrainingBatch) -> Counts:
        tokens = batch.live * (batch.rows.shape[1] - 1)
        return Counts(tokens=tokens, targets=(tokens,))

    def cut(self, batch: TrainingBatch, *, number: int, size: int) -> Iterator[Inputs]:
        for start in range(0, number * size, size):
            rows_BS = batch.rows[start : start + size]
            goals_BT = rows_BS[:, 1:].clone()
            goals_BT[max(0, batch.live - start) :] = IGNORED
            yield rows_BS, goals_BT

    def heads(self, model: nn.Module, rows_BS: Tensor, goals_BT: Tensor) -> list[Head]:
        logits_BTV = model(rows_BS[:, :-1])
        return [Head(logits_BTV.flatten(0, 1), goals_BT.flatten())]

    def loss(self, model: nn.Module, *inputs: Tensor) -> Tensor:
        return cross_entropies(self.heads(model, *inputs))


def objective(_tokens: AnySet, _settings: spec.Objective, _seed: int, _device: torch.device) -> Causal:
    return Causal()
