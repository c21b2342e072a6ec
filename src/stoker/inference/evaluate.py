"""How well a model predicts a text.

For a causal model, the loss on rows of tokens packed as in training; for a masked model, the loss on sentence pairs,
and how often it predicts the masked words and the next sentence right.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import decoders
from torch import Tensor, nn

from stoker.data import order, prepare
from stoker.data.any_set import AnySet
from stoker.data.bert.pairs import Pairs, PairSet, PairSplit
from stoker.data.shards import Split
from stoker.data.tokenizer import LoadedTokenizer, save
from stoker.models.load import LoadedModel
from stoker.spec import run as spec
from stoker.spec.data import Data
from stoker.spec.errors import RunFailed, UserError
from stoker.spec.model import Model
from stoker.train.batches import held_out
from stoker.train.choices import DTYPES, Precision
from stoker.train.objectives import Plain, cross_entropies, losses, plain
from stoker.train.objectives.causal import Causal

MAX_LOGITS = 1 << 27  # numbers in the logits of a batch, unless a single row has more
BATCH_TOKENS = 1 << 13
MAX_EXPONENT = 700.0  # a loss whose exponential still fits a float


def perplexity(loss: float) -> float | None:
    """None when it is too large for a float."""
    return math.exp(loss) if loss < MAX_EXPONENT else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    loss: float
    """Nats per token."""
    sequences: int
    tokens: int
    """Predicted, each once."""
    bytes: int | None
    """Of the text of these tokens; None without a tokenizer."""
    seconds: float

    @property
    def perplexity(self) -> float | None:
        return perplexity(self.loss)

    @property
    def bits_per_byte(self) -> float | None:
        return self.loss * self.tokens / math.log(2) / self.bytes if self.bytes else None

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


def evaluate(
    model: nn.Module,
    shape: Model,
    split: Split,
    *,
    length: int,
    sequences: int | None = None,
    precision: Precision = "fp32",
    widths: NDArray[np.int64] | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Score:
    """Predict every token of a split from those before it in its row, or those of `sequences` rows spread over it.

    `widths`: bytes of text per token, from `token_widths`.
    """
    assert shape.vocab is not None
    whole, at_once = split.samples(length), max(1, min(BATCH_TOKENS, MAX_LOGITS // shape.vocab) // length)
    ids = np.arange(whole) if sequences is None else order.spread(whole, sequences)
    batches = [ids[start : start + at_once] for start in range(0, len(ids), at_once)]
    began, loss_sum, tokens, size = time.monotonic(), 0.0, 0, 0
    tail = split.tail(length) if sequences is None else None
    done, total = 0, len(ids) + (tail is not None)
    for rows in _all_rows(split, batches, length, tail=tail):
        loss_sum += _loss(model, torch.from_numpy(rows), precision)
        tokens += rows[:, 1:].size
        size += 0 if widths is None else int(widths[rows[:, 1:]].sum())
        done += len(rows)
        progress(done, total)
    if not tokens:
        remedy = "Leave --sequences out or lower --length" if split.tokens > 1 else "Name a longer text"
        raise UserError(
            f"there are {split.tokens} tokens to evaluate on, and not one sequence of {length} with the token after it",
            remedy=remedy,
        )
    if widths is not None and not size:
        raise UserError(
            "the text is too short: after its first token nothing of it is left to predict", remedy="Name a longer text"
        )
    if not math.isfinite(loss_sum):
        raise RunFailed(f"the loss is {loss_sum}", remedy="Use an earlier checkpoint with --step N")
    return Score(
        loss=loss_sum / tokens,
        sequences=total,
        tokens=tokens,
        bytes=None if widths is None else size,
        seconds=time.monotonic() - began,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedScore:
    loss: float
    parts: dict[str, float]
    """The loss of masked words, and of next sentences."""
    word_accuracy: float
    next_accuracy: float
    sequences: int
    tokens: int
    """Without padding."""
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
    """Over every pair of a split, or over `sequences` spread over it, masked as in the evaluations of training."""
    device = next(model.parameters()).device
    length, objective = pairs.index.length, plain("masked", pairs, settings, seed=seed, device=device)
    ids = np.arange(split.records) if sequences is None else order.spread(split.records, sequences)
    at_once, began = max(1, BATCH_TOKENS // length), time.monotonic()
    sums, right, targets, tokens = np.zeros(2), np.zeros(2, np.int64), np.zeros(2, np.int64), 0
    for start in range(0, len(ids), at_once):
        chosen = ids[start : start + at_once]
        batch = held_out(torch.from_numpy(split.read(chosen, length)), chosen)
        counts = objective.count(batch)
        (inputs,) = objective.cut(batch, number=1, size=len(chosen))
        batch_sums, batch_right = _evaluate_batch(model, objective, inputs, precision)
        sums, right = sums + batch_sums, right + batch_right
        targets, tokens = targets + counts.targets, tokens + counts.tokens
        progress(start + len(chosen), len(ids))
    if not math.isfinite(sums.sum()):
        raise RunFailed(f"the loss is {sums.sum()}", remedy="Use an earlier checkpoint with --step N")
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


def precision_of(loaded: LoadedModel) -> Precision:
    """The precision that its run computed in, so that both get the same numbers."""
    saved = [saved for saved in loaded.run.saved() if saved.step == loaded.step] if loaded.run else []
    choices = saved[0].manifest.state.choices if saved else None
    chosen: Precision = choices.precision if choices else "fp32"
    on_cpu = next(loaded.model.parameters()).device.type == "cpu"
    return "fp32" if chosen == "fp16" and on_cpu else chosen  # fp16 is for GPUs: a CPU takes minutes for seconds


def tokenise(
    data: Data,
    tokenizer: LoadedTokenizer | None,
    folder: Path,
    progress: Callable[[prepare.PrepareProgress], None],
    *,
    pairs: Pairs | None = None,
) -> AnySet:
    """Prepare text in an empty folder, all of it in the split `train`. HDF5 needs no tokenizer."""
    if tokenizer:
        save(tokenizer, folder / "tokenizer")
    home = str(folder / "tokenizer") if tokenizer else None
    data = data.model_copy(update={"tokenizer": home, "validation": 0.0})
    return prepare.prepare(data, folder / "set", pairs=pairs, progress=progress)


def token_widths(tokenizer: LoadedTokenizer, rows: int) -> NDArray[np.int64]:
    """Bytes of text of each token; 0 for special tokens."""
    widths = np.zeros(rows, np.int64)
    letters_are_bytes = isinstance(tokenizer.tokenizer.decoder, decoders.ByteLevel)
    for token, id in tokenizer.tokenizer.get_vocab().items():
        if id < rows:
            widths[id] = len(token) if letters_are_bytes else _width(token)
    for id, added in tokenizer.tokenizer.get_added_tokens_decoder().items():
        if id < rows:
            widths[id] = 0 if added.special else len(added.content.encode())
    return widths


def _width(token: str) -> int:
    if len(token) == len("<0x0A>") and token.startswith("<0x"):
        return 1  # a byte that has no character in the vocabulary
    return len(token.replace("▁", " ").encode())


def _all_rows(
    split: Split, batches: Sequence[NDArray[np.int64]], length: int, *, tail: NDArray[np.int64] | None
) -> Iterator[NDArray[np.int64]]:
    for ids in batches:
        yield split.read(ids, length)
    if tail is not None:
        yield tail[None]


@torch.inference_mode()
def _loss(model: nn.Module, rows: Tensor, precision: Precision) -> float:
    device, objective = next(model.parameters()).device, Causal()
    (inputs,) = objective.cut(held_out(rows), number=1, size=len(rows))
    with torch.autocast(device.type, dtype=DTYPES[precision], enabled=precision != "fp32"):
        return float(objective.loss(model, *(tensor.to(device) for tensor in inputs)))


@torch.inference_mode()
def _evaluate_batch(
    model: nn.Module, objective: Plain, inputs: tuple[Tensor, ...], precision: Precision
) -> tuple[list[float], list[int]]:
    """The sum of each part of the loss, and how many were right."""
    device = next(model.parameters()).device
    with torch.autocast(device.type, dtype=DTYPES[precision], enabled=precision != "fp32"):
        heads = objective.heads(model, *(tensor.to(device) for tensor in inputs))
    right = [int((head.logits_NV.argmax(-1) == head.goals_N).sum()) for head in heads]
    return cross_entropies(heads).tolist(), right
