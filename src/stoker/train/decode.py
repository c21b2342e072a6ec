"""How a model is read one token at a time. Each row of tokens has a memory of its own; all rows step together."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn


class Decoder(Protocol):
    """Made of a module in eval mode, the number of rows, and the most tokens that a row will ever hold."""

    def read(self, rows: Sequence[int], tokens_RT: Tensor) -> None:
        """Forget what these rows held and read this in its place; it may be nothing."""

    def step(self, tokens_B: Tensor) -> Tensor:
        """Read one more token in every row; gives the logits of what comes next."""

    def keep(self, rows: Sequence[int]) -> None:
        """Drop the other rows; those kept are numbered anew."""


class Rereading:
    """For a model that cannot remember: every step reads the rows from their beginning."""

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
        alike = defaultdict(list)  # rows of one length are read together: padding might change what a model says
        for row, tokens_T in enumerate(self._rows):
            alike[len(tokens_T)].append(row)
        logits: dict[int, Tensor] = {}
        for rows in alike.values():
            logits |= zip(rows, self._model(torch.stack([self._rows[row] for row in rows]))[:, -1], strict=True)
        return torch.stack([logits[row] for row in range(len(self._rows))])

    def keep(self, rows: Sequence[int]) -> None:
        self._rows = [self._rows[row] for row in rows]
