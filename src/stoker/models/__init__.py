"""Model families: one file each, and the dict that names them. The trainer knows no family by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Literal, cast

from torch import Tensor, nn

from stoker.models.decoder import MakeDecoder, RereadingDecoder
from stoker.models.initial_weights import Distribution
from stoker.spec.code import is_code
from stoker.spec.model import Model

Weights = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    build: Callable[[Model], nn.Module]
    """Shape -> module, on torch's default device; `vocab` must be set. Its weights are drawn later, by `initial`."""
    initial: Callable[[Model, str, int], Distribution] | None = None
    """(shape, parameter name, dimensions) -> its initial distribution. None: `build` initializes the module itself."""
    objective: Literal["causal", "masked"] = "causal"
    """The training objective of the family."""
    attention_extremes: Callable[[nn.Module, Tensor], list[tuple[float, float]]] | None = None
    """(module, tokens) -> largest and smallest attention score of each layer. None: the family cannot report them."""
    from_hf: Callable[[Mapping[str, Tensor]], Weights]
    """Weights of the transformers class -> ours."""
    to_hf: Callable[[Mapping[str, Tensor]], Weights]
    """Our weights -> those of the transformers class."""
    tied: Callable[[Model], Mapping[str, str]] = lambda _: {}
    """transformers' names of tied tensors -> our name of the tensor."""
    optional: tuple[str, ...] = ()
    """Prefixes of our names that may be missing in a folder of transformers; they then get initial weights."""
    blocks: str
    """Name of the module's list of blocks."""
    positions: tuple[str, ...] = ()
    """Position embeddings; they can be frozen."""
    decoder: MakeDecoder = RereadingDecoder
    """Makes a decoder, which may use the parameters directly: for a model that is held whole."""


MODELS = {
    "gpt2": "stoker.models.gpt2",
    "llama": "stoker.models.llama",
    "bert": "stoker.models.bert",
}
OWN = "stoker.models.own"


def model_spec(family: str) -> ModelSpec:
    if is_code(family):
        return cast(ModelSpec, import_module(OWN).own_spec(family))
    return cast(ModelSpec, import_module(MODELS[family]).SPEC)


def weights(model: nn.Module) -> Weights:
    """The tensors that a checkpoint saves: parameters and persistent buffers; a shared tensor once, by its first name.

    They share the model's memory: loading writes into them.
    """
    held: Weights = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, Tensor) and id(tensor) not in seen:
            seen.add(id(tensor))
            held[name] = tensor.data
    return held
