"""The models: one file each, and the dict that names them. The trainer knows none of them by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import cast

from torch import Tensor, nn

from stoker.spec.run import Model

Weights = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    build: Callable[[Model], nn.Module]
    """Shape -> module with initial weights drawn from torch's CPU generator; `vocab` must be set."""
    attention_extremes: Callable[[nn.Module, Tensor], list[tuple[float, float]]]
    """(module, tokens) -> largest and smallest attention score of each layer."""
    from_hf: Callable[[Mapping[str, Tensor]], Weights]
    """Weights of the transformers class -> ours."""
    to_hf: Callable[[Mapping[str, Tensor]], Weights]
    """Our weights -> those of the transformers class."""


MODELS = {"gpt2": "stoker.train.models.gpt2"}


def model_spec(family: str) -> ModelSpec:
    return cast(ModelSpec, import_module(MODELS[family]).SPEC)
