"""A model from the user's own code: any module that maps tokens [B, T] to logits [B, T, V]."""

import random
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from stoker.models import ModelSpec
from stoker.spec.code import explain, load_code
from stoker.spec.errors import StokerError, UserError
from stoker.spec.model import Model

KEY = "model.family"
TRIAL_TOKENS = 256  # in the longer of the two sequences that a new module is tried on


def own_spec(name: str) -> ModelSpec:
    function = load_code(name, KEY)
    if not callable(function):
        raise _wrong(name, f"it is {_a(function)}", remedy="Name a function that takes the sizes and returns a module")

    def no_names(_weights: Mapping[str, Tensor]) -> NoReturn:
        raise UserError(
            f"{name} is your own code, and transformers has no class for it",
            remedy="Load its weights with stoker.models.load.load_model",
        )

    def build(shape: Model) -> nn.Module:
        return _built(name, function, shape)

    return ModelSpec(build=build, blocks="", from_hf=no_names, to_hf=no_names)


def _built(name: str, function: Callable[[Model], Any], shape: Model) -> nn.Module:
    """With the same weights on every worker: torch's seed is also used for Python's and numpy's generators."""
    seed = torch.initial_seed()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        model = function(shape)
    except StokerError:
        raise
    except (Exception, SystemExit) as e:
        raise _wrong(name, f"it fails: {explain(e, name)}", remedy="Its argument is a stoker.spec.model.Model") from e
    if not isinstance(model, nn.Module):
        raise _wrong(name, f"it returned {_a(model)}", remedy="Return a torch.nn.Module")
    _check_parameters(name, model)
    _try(name, model, shape)
    return model


def _check_parameters(code: str, model: nn.Module) -> None:
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise _wrong(code, "its module has nothing to train", remedy="Give it parameters that require a gradient")
    for name, p in trained.items():
        if is_lazy(p) or p.is_meta:
            raise _wrong(code, f"its parameter {name} has no values yet", remedy="Return a module that is ready to use")
        if p.dtype != torch.float32:
            raise _wrong(
                code,
                f"its parameter {name} is {str(p.dtype).removeprefix('torch.')}",
                remedy="Keep what is trained in float32: precision says what it is computed in",
            )


@torch.no_grad()
def _try(name: str, model: nn.Module, shape: Model) -> None:
    """Run it on a short and a longer sequence: it should fail now, not at the end when a sample is generated."""
    training = model.training
    model.eval()
    device = next(model.parameters()).device
    for length in (1, min(TRIAL_TOKENS, shape.context)):
        tokens = torch.zeros(1, length, dtype=torch.int64, device=device)
        example, wanted = f"tokens of shape [1, {length}]", [1, length, shape.vocab]
        try:
            logits = model(tokens)
        except Exception as e:
            remedy = f"It must take any length up to model.context, {shape.context}"
            raise _wrong(name, f"its module fails on {example}: {explain(e, name)}", remedy=remedy) from e
        if not isinstance(logits, Tensor) or not logits.is_floating_point() or list(logits.shape) != wanted:
            remedy = f"Return a float tensor of logits of shape {wanted}: batch, tokens, model.vocab"
            raise _wrong(name, f"its module returned {_a(logits)} for {example}", remedy=remedy)
    model.train(training)


def _a(value: object) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    if isinstance(value, Tensor):
        name = f"{str(value.dtype).removeprefix('torch.')} tensor of shape {list(value.shape)}"
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _wrong(name: str, problem: str, *, remedy: str) -> UserError:
    return UserError(f"{KEY} names {name}, and {problem}", remedy=remedy)
