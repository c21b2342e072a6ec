"""Incremental decoding: a model reads one token at a time, many rows together, each row with its own cache.

Shapes: N layers, B rows, R some of the rows, T time, L length, H heads of keys and values, D size of a head,
V vocabulary.
"""

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

# A CPU multiplies a few rows by a transposed matrix up to twice as fast. Models up to this size get transposed copies.
MAX_COPIED_BYTES = 1 << 30


class Decoder(Protocol):
    """Made from a module in eval mode, the number of rows, and the largest number of tokens in a row."""

    def read(self, rows: Sequence[int], tokens_RT: Tensor) -> None:
        """Replace the content of these rows by these tokens, possibly none."""

    def step(self, tokens_B: Tensor) -> Tensor:
        """Read one more token in every row; returns the logits of the token after it."""

    def keep(self, rows: Sequence[int]) -> None:
        """Drop the other rows; those kept are renumbered from 0."""


MakeDecoder = Callable[[nn.Module, int, int], Decoder]
"""(module, rows, length) -> a decoder of `rows` rows of up to `length` tokens each."""


class CachedDecoder(ABC):
    """Keeps the keys and values of every layer in one preallocated tensor."""

    def __init__(self, model: nn.Module, *, layers: int, rows: int, heads: int, length: int, head_size: int) -> None:
        self.lengths = [0] * rows
        """Tokens in each row."""
        weight = next(model.parameters())
        self.cache_NB2HLD = weight.new_zeros(layers, rows, 2, heads, length, head_size)
        self._copies = weight.device.type == "cpu" and sum(p.nbytes for p in model.parameters()) <= MAX_COPIED_BYTES

    @torch.inference_mode()
    def read(self, rows: Sequence[int], tokens_RT: Tensor) -> None:
        for row in rows:
            self.lengths[row] = tokens_RT.shape[1]
        if tokens_RT.shape[1]:
            self._read(list(rows), tokens_RT.to(self.cache_NB2HLD.device))

    @torch.inference_mode()
    def step(self, tokens_B: Tensor) -> Tensor:
        logits_BV = self._step(tokens_B.to(self.cache_NB2HLD.device), longest=max(self.lengths))
        self.lengths = [length + 1 for length in self.lengths]
        return logits_BV

    def keep(self, rows: Sequence[int]) -> None:
        self.cache_NB2HLD = self.cache_NB2HLD[:, list(rows)]
        self.lengths = [self.lengths[row] for row in rows]

    @abstractmethod
    def _read(self, rows: list[int], tokens_RT: Tensor) -> None:
        """Run the model on the tokens, and `_store` the keys and values of each layer."""

    @abstractmethod
    def _step(self, tokens_B: Tensor, *, longest: int) -> Tensor:
        """Run the model on a token per row, at the end of its row: extend the cache, and return the logits.

        `longest`: tokens in the longest row, before this one.
        """

    def _store(self, layer: int, rows: list[int], k_RHTD: Tensor, v_RHTD: Tensor) -> None:
        cache_B2HLD, T = self.cache_NB2HLD[layer], k_RHTD.shape[2]
        cache_B2HLD[rows, 0, :, :T] = k_RHTD
        cache_B2HLD[rows, 1, :, :T] = v_RHTD

    def _transposed(self, weight: Tensor) -> Tensor:
        view = weight.detach().t()
        return view.contiguous() if self._copies else view


class RereadingDecoder:
    """For a model without a cache: every step reads the rows from their beginning."""

    def __init__(self, model: nn.Module, rows: int, _length: int) -> None:
        self._model = model
        self._device = next(model.parameters()).device
        self._rows = [torch.empty(0, dtype=torch.int64, device=self._device)] * rows

    def read(self, rows: Sequence[int], tokens_RT: Tensor) -> None:
        for row, tokens_T in zip(rows, tokens_RT.to(self._device), strict=True):
            self._rows[row] = tokens_T

    @torch.inference_mode()
    def step(self, tokens_B: Tensor) -> Tensor:
        self._rows = [torch.cat(pair) for pair in zip(self._rows, tokens_B.to(self._device)[:, None], strict=True)]
        same_length = defaultdict(list)  # such rows are read together: padding might change a model's logits
        for row, tokens_T in enumerate(self._rows):
            same_length[len(tokens_T)].append(row)
        logits: dict[int, Tensor] = {}
        for rows in same_length.values():
            logits |= zip(rows, self._model(torch.stack([self._rows[row] for row in rows]))[:, -1], strict=True)
        return torch.stack([logits[row] for row in range(len(self._rows))])

    def keep(self, rows: Sequence[int]) -> None:
        self._rows = [self._rows[row] for row in rows]


def causal_mask(lengths_B: Tensor, longest: int) -> Tensor:
    """For rows of different lengths: each attends up to the position of its newest token."""
    later_BL = torch.arange(longest + 1, device=lengths_B.device) > lengths_B[:, None]
    return torch.zeros(later_BL.shape, device=lengths_B.device).masked_fill_(later_BL, -math.inf)[:, None, None]
