"""Incremental decoding: a model reads one token at a time, many rows together, each row with its own cache."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn


class Decoder(Protocol):
    """Made from a module in eval mode, the number of rows, and the largest number of tokens in a row."""

    def read(self, rows: Sequence[int], tokens_RT: Tensor) -> None:
        """Replace the content of these rows by these tokens, possibly none."""

    def step(self, tokens_B: Tensor) -> Tensor:
        """Read one more token in every row; returns the logits of the token after it."""

    def keep(self, rows: Sequence[int]) -> None:
        """Drop the other rows; those kept are renumbered from 0."""


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


MakeDecoder = Callable[[nn.Module, int, int], Decoder]
"""(module, rows, length) -> a decoder of `rows` rows of up to `length` tokens each."""
