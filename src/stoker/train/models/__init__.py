"""The models: one file each, and the dict that names them. The trainer knows none of them by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Literal, cast

from torch import Tensor, nn

from stoker.spec.code import is_code
from stoker.spec.model import Model
from stoker.train.decode import Decoder, Rereading

Weights = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    build: Callable[[Model], nn.Module]
    """Shape -> module with initial weights drawn from torch's CPU generator; `vocab` must be set."""
    objective: Literal["causal", "masked"] = "causal"
    """What such a model learns to do."""
    attention_extremes: Callable[[nn.Module, Tensor], list[tuple[float, float]]] | None = None
    """(module, tokens) -> largest and smallest attention score of each layer, where one can look."""
    from_hf: Callable[[Mapping[str, Tensor]], Weights]
    """Weights of the transformers class -> ours."""
    to_hf: Callable[[Mapping[str, Tensor]], Weights]
    """Our weights -> those of the transformers class."""
    tied: Callable[[Model], Mapping[str, str]] = lambda _: {}
    """Their names that repeat a tensor -> our name of it."""
    may_lack: tuple[str, ...] = ()
    """How our names begin of tensors that a folder of transformers may lack; they are then drawn anew."""
    blocks: str
    """Where the module keeps its list of blocks."""
    positions: tuple[str, ...] = ()
    """Parameters that say where a token stands; they can be frozen."""
    decoder: Callable[[nn.Module, int, int], Decoder] = Rereading
    """(module, rows, length) -> what writes text, of `rows` rows of up to `length` tokens each."""


MODELS = {
    "gpt2": "stoker.train.models.gpt2",
    "llama": "stoker.train.models.llama",
    "bert": "stoker.train.models.bert",
}
OWN = "stoker.train.models.own"


def model_spec(family: str) -> ModelSpec:
    if is_code(family):
        return cast(ModelSpec, import_module(OWN).own_spec(family))
    return cast(ModelSpec, import_module(MODELS[family]).SPEC)


def weights(model: nn.Module) -> Weights:
    """What a checkpoint holds of a model: its parameters and lasting buffers, a shared one once, by its first name.

    They are the model's own: what is written into them is in the model.
    """
    found: Weights = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, Tensor) and id(tensor) not in seen:
            seen.add(id(tensor))
            found[name] = tensor.data
    return found
