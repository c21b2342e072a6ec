"""How well a masked model predicts: its loss, and how often it finds the word and knows what follows."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from stoker.data import order
from stoker.data.pairs import PairSet, PairSplit
from stoker.spec import run as spec
from stoker.spec.errors import RunFailed
from stoker.train.batches import held_out
from stoker.train.choices import DTYPES, Precision
from stoker.train.objectives import Plain, cross_entropies, losses, plain

TOKENS = 1 << 13  # in a batch


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedScore:
    loss: float
    parts: dict[str, float]
    """The loss of masked words, and of next sentences."""
    word_accuracy: float
    next_accuracy: float
    sequences: int
    tokens: int
    """Real ones."""
    words: int
    """Masked, each predicted once."""
    seconds: float


def evaluate_masked(
    model: nn.Module,
    pairs: PairSet,
    split: PairSplit,
    settings: spec.Objective,
    *,
    seed: int = 0,
    sequences: int | None = None,
    precision: Precision = "fp32",
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> MaskedScore:
    """Over every pair of a split, or over `sequences` spread over it, masked as training's own evaluations are."""
    device = next(model.parameters()).device
    length, objective = pairs.index.length, plain("masked", pairs, settings, seed=seed, device=device)
    ids = np.arange(split.records) if sequences is None else order.spread(split.records, sequences)
    at_once, began = max(1, TOKENS // length), time.monotonic()
    sums, right, targets, tokens = np.zeros(2), np.zeros(2, np.int64), np.zeros(2, np.int64), 0
    for start in range(0, len(ids), at_once):
        chosen = ids[start : start + at_once]
        batch = held_out(torch.from_numpy(split.read(chosen, length)), chosen)
        counts = objective.count(batch)
        (inputs,) = objective.cut(batch, number=1, size=len(chosen))
        found = _judge(model, objective, inputs, precision)
        sums, right = sums + found[0], right + found[1]
        targets, tokens = targets + counts.targets, tokens + counts.tokens
        progress(start + len(chosen), len(ids))
    if not math.isfinite(sums.sum()):
        raise RunFailed(f"the loss is {sums.sum()}", remedy="Take an earlier checkpoint with --step N")
    means = losses(objective, sums.tolist(), targets.tolist())
    accuracies = (right / np.maximum(1, targets)).tolist()
    return MaskedScore(
        loss=means.pop("loss"),
        parts=means,
        word_accuracy=accuracies[0],
        next_accuracy=accuracies[1],
        sequences=len(ids),
        tokens=tokens,
        words=int(targets[0]),
        seconds=time.monotonic() - began,
    )


@torch.inference_mode()
def _judge(
    model: nn.Module, objective: Plain, inputs: tuple[torch.Tensor, ...], precision: Precision
) -> tuple[list[float], list[int]]:
    """The sum of each part of the loss, and how many were right."""
    device = next(model.parameters()).device
    with torch.autocast(device.type, dtype=DTYPES[precision], enabled=precision != "fp32"):
        heads = objective.heads(model, *(tensor.to(device) for tensor in inputs))
    right = [int((head.logits_NV.argmax(-1) == head.goals_N).sum()) for head in heads]
    return cross_entropies(heads).tolist(), right
