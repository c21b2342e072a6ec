"""How well a model predicts a text: its loss on rows of tokens, packed as in training."""

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
from stoker.data.pairs import AnySet, Pairs
from stoker.data.shards import Split
from stoker.data.tokenizer import LoadedTokenizer, save
from stoker.spec.data import Data
from stoker.spec.errors import RunFailed, UserError
from stoker.spec.model import Model
from stoker.train.batches import held_out
from stoker.train.choices import DTYPES, Precision
from stoker.train.load import LoadedModel
from stoker.train.objectives.causal import Causal

LOGITS = 1 << 27  # numbers that a batch gives, as far as a row is not more
TOKENS = 1 << 13  # in a batch
LONGEST = 700.0  # a loss whose exponential is still a number


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    loss: float
    """Nats a token."""
    sequences: int
    tokens: int
    """Predicted, each once."""
    bytes: int | None
    """Of text that these tokens spell; None where no tokenizer says."""
    seconds: float

    @property
    def perplexity(self) -> float | None:
        """None when it is more than a number can say."""
        return math.exp(self.loss) if self.loss < LONGEST else None

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

    `widths` has the bytes that each token spells, as `token_widths` gives them.
    """
    assert shape.vocab is not None
    whole, at_once = split.samples(length), max(1, min(TOKENS, LOGITS // shape.vocab) // length)
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
        raise RunFailed(f"the loss is {loss_sum}", remedy="Take an earlier checkpoint with --step N")
    return Score(
        loss=loss_sum / tokens,
        sequences=total,
        tokens=tokens,
        bytes=None if widths is None else size,
        seconds=time.monotonic() - began,
    )


def precision_of(loaded: LoadedModel) -> Precision:
    """What its run computed with, so that both get the same figures."""
    saved = [saved for saved in loaded.run.saved() if saved.step == loaded.step] if loaded.run else []
    choices = saved[0].manifest.state.choices if saved else None
    chosen: Precision = choices.precision if choices else "fp32"
    on_cpu = next(loaded.model.parameters()).device.type == "cpu"
    return "fp32" if chosen == "fp16" and on_cpu else chosen  # fp16 is for GPUs: a CPU takes minutes for seconds


def tokenise(
    data: Data,
    tokenizer: LoadedTokenizer | None,
    folder: Path,
    progress: Callable[[prepare.Progress], None],
    *,
    pairs: Pairs | None = None,
) -> AnySet:
    """Text as tokens or pairs, all of them in the split `train`, kept in an empty folder. HDF5 needs no tokenizer."""
    if tokenizer:
        save(tokenizer, folder / "tokenizer")
    home = str(folder / "tokenizer") if tokenizer else None
    data = data.model_copy(update={"tokenizer": home, "validation": 0.0})
    return prepare.prepare(data, folder / "set", pairs=pairs, progress=progress)


def token_widths(tokenizer: LoadedTokenizer, rows: int) -> NDArray[np.int64]:
    """The bytes that each of a model's tokens spells; none for those that stand for no text."""
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
        return 1  # one byte that the vocabulary has no character for
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
