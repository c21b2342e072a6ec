"""A model against the one that others trust, with the same weights."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def agrees(ours: nn.Module, reference: Any, tokens: Tensor, from_hf: Callable[[Any], Mapping[str, Tensor]]) -> None:
    """In its logits, and in the gradients of what follows each token."""
    logits, wanted = ours(tokens), reference(tokens).logits
    assert torch.allclose(logits, wanted, rtol=1e-5, atol=1e-5)
    goals = tokens.roll(-1, 1).flatten()
    for found in (logits, wanted):
        torch.nn.functional.cross_entropy(found.flatten(0, 1), goals).backward()
    theirs = from_hf({name: p.grad for name, p in reference.named_parameters()})
    for name, p in ours.named_parameters():
        assert torch.allclose(p.grad, theirs[name], rtol=1e-4, atol=1e-6), name
