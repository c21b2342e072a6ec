"""A model of the user's own: any module that maps tokens [B, T] to logits [B, T, V]."""

import random
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from stoker.spec.code import explain, load_code
from stoker.spec.errors import StokerError, UserError
from stoker.spec.model import Model
from stoker.train.models import ModelSpec

KEY = "model.family"
TRIED = 256  # tokens of the longer of two sequences that a new module is tried on


def own_spec(word: str) -> ModelSpec:
    function = load_code(word, KEY)
    if not callable(function):
        raise _wrong(word, f"it is {_a(function)}", remedy="Name a function that takes the sizes and returns a module")

    def no_names(_weights: Mapping[str, Tensor]) -> NoReturn:
        raise UserError(
            f"{word} is code of your own, and transformers has no class for it",
            remedy="Load its weights with stoker.train.load.load_model",
        )

    def build(shape: Model) -> nn.Module:
        return _built(word, function, shape)

    def no_extremes(_model: nn.Module, _tokens: Tensor) -> NoReturn:
        raise _wrong(word, "nobody can look into its attention", remedy="Set log.attention to false")

    return ModelSpec(build=build, blocks="", attention_extremes=no_extremes, from_hf=no_names, to_hf=no_names)


def _built(word: str, function: Callable[[Model], Any], shape: Model) -> nn.Module:
    """With weights that follow from torch's seed, whatever they are drawn with: every worker must have the same."""
    seed = torch.initial_seed()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        model = function(shape)
    except StokerError:
        raise
    except (Exception, SystemExit) as e:
        raise _wrong(word, f"it fails: {explain(e, word)}", remedy="It is given a stoker.spec.model.Model") from e
    if not isinstance(model, nn.Module):
        raise _wrong(word, f"it returned {_a(model)}", remedy="Return a torch.nn.Module")
    _check_parameters(word, model)
    _try(word, model, shape)
    return model


def _check_parameters(word: str, model: nn.Module) -> None:
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise _wrong(word, "its module has nothing to train", remedy="Give it parameters that require a gradient")
    for name, p in trained.items():
        if is_lazy(p) or p.is_meta:
            raise _wrong(word, f"its parameter {name} has no values yet", remedy="Return a module that is ready to use")
        if p.dtype != torch.float32:
            raise _wrong(
                word,
                f"its parameter {name} is {str(p.dtype).removeprefix('torch.')}",
                remedy="Keep what is trained in float32: precision says what it is computed in",
            )


@torch.no_grad()
def _try(word: str, model: nn.Module, shape: Model) -> None:
    """Once, on a short sequence and a longer one: better now than at the end, when the run writes a sample."""
    training = model.training
    model.eval()
    device = next(model.parameters()).device
    for length in (1, min(TRIED, shape.context)):
        tokens = torch.zeros(1, length, dtype=torch.int64, device=device)
        given, wanted = f"tokens of shape [1, {length}]", [1, length, shape.vocab]
        try:
            logits = model(tokens)
        except Exception as e:
            remedy = f"It must take any length up to model.context, {shape.context}"
            raise _wrong(word, f"its module fails on {given}: {explain(e, word)}", remedy=remedy) from e
        if not isinstance(logits, Tensor) or not logits.is_floating_point() or list(logits.shape) != wanted:
            remedy = f"Return a float tensor of logits of shape {wanted}: batch, tokens, model.vocab"
            raise _wrong(word, f"its module made {_a(logits)} of {given}", remedy=remedy)
    model.train(training)


def _a(value: object) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    if isinstance(value, Tensor):
        name = f"{str(value.dtype).removeprefix('torch.')} tensor of shape {list(value.shape)}"
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _wrong(word: str, problem: str, *, remedy: str) -> UserError:
    return UserError(f"{KEY} names {word}, and {problem}", remedy=remedy)
