"""Compares a model with the reference implementation, with the same weights."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def agrees(ours: nn.Module, reference: Any, tokens: Tensor, from_hf: Callable[[Any], Mapping[str, Tensor]]) -> None:
    """In its logits, and in the gradients of the next-token loss."""
    logits, wanted = ours(tokens), reference(tokens).logits
    assert torch.allclose(logits, wanted, rtol=1e-5, atol=1e-5)
    goals = tokens.roll(-1, 1).flatten()
    for output in (logits, wanted):
        torch.nn.functional.cross_entropy(output.flatten(0, 1), goals).backward()
    theirs = from_hf({name: p.grad for name, p in reference.named_parameters()})
    for name, p in ours.named_parameters():
        assert p.grad is not None, name
        assert torch.allclose(p.grad, theirs[name], rtol=1e-4, atol=1e-6), name
