"""A new model: built without memory, then given memory on a device, then given its initial weights.

    model = build(shape)            on the meta device: shapes and names, no numbers
    model = materialise(model, device)
    draw_weights(model, shape, seed=seed)

A model of the user's own code is built whole on the CPU, with the weights that the code gives it: torch's seed decides
them, and `draw_weights` leaves them alone.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from stoker.models import MODELS, model_spec
from stoker.models.initial_weights import ParameterBlock, draw
from stoker.spec.model import Model


def build(shape: Model) -> nn.Module:
    family = model_spec(shape.family)
    if shape.family not in MODELS:
        return family.build(shape)
    with torch.device("meta"), SkipInit():
        return family.build(shape)


class SkipInit(TorchFunctionMode):
    """Layers do not draw weights of their own: on the meta device that would load torch's compiler, in 0.7 s."""

    def __torch_function__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__module__", None) == nn.init.__name__:
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)


def materialise(model: nn.Module, device: torch.device) -> nn.Module:
    """Give it memory on the device; weights that had no memory are undefined until drawn or loaded."""
    if any(p.is_meta for p in model.parameters()):
        return model.to_empty(device=device)
    return model.to(device)


def draw_weights(
    model: nn.Module, shape: Model, *, seed: int, block: Callable[[Tensor], ParameterBlock] = ParameterBlock.whole
) -> None:
    """Fill the parameters, each with its family's distribution; `block` returns this worker's part of a parameter."""
    distribution = model_spec(shape.family).initial
    if distribution is None:
        return
    for name, p in model.named_parameters():
        draw(block(p), distribution(shape, name, p.dim()), seed=seed, name=name)


def new_model(shape: Model, *, seed: int = 0, device: str | torch.device = "cpu") -> nn.Module:
    """A complete model with its initial weights."""
    model = materialise(build(shape), torch.device(device))
    draw_weights(model, shape, seed=seed)
    return model
