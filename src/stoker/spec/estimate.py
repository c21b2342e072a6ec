"""Estimates from the sizes of a model: parameters, FLOPs and bytes.

A user's own model may use the sizes in any way: `counted` is the number of parameters that the module really has.
"""

from dataclasses import dataclass
from typing import Literal

from stoker.spec.code import is_code
from stoker.spec.model import Model

FP32 = 4
SEGMENTS = 2  # first and second sentence
MASKED = 0.2  # at most, of the words of a sequence: a masked model computes logits only for these
VALUE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class StateBytes:
    """Memory that training needs at any batch size: all in fp32, since mixed precision casts only operands."""

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer


def parameters(model: Model, vocab: int) -> int:
    """Shared parameters count once: the output head is the token embedding, unless a Llama has its own."""
    if model.family == "llama":
        ends = vocab * model.width * (1 if model.tied else 2) + model.width
        return ends + model.layers * (_block_matrices(model) + 2 * model.width)
    embeddings = (vocab + model.context) * model.width
    norms_and_biases = 9 * model.width + model.inner  # two norms (4), qkv (3), attention out (1), feed-forward
    blocks = model.layers * (_block_matrices(model) + norms_and_biases)
    return embeddings + blocks + 2 * model.width + (_masked_heads(model, vocab) if model.masked else 0)


def flops_per_token(model: Model, vocab: int, length: int, *, counted: int) -> int:
    """FLOPs of training on one token, forward and backward, by the convention of published MFU figures.

    Six for each weight of a matrix product (the head counts, looking up an embedding does not), and 12 · layers ·
    width · length for attention over the full square of scores, though a causal kernel needs only half of it.
    A user's own model counts six per parameter. A masked model's heads are left out: few positions use them.
    """
    if is_code(model.family):
        return 6 * counted
    weights = model.layers * _block_matrices(model) + (0 if model.masked else vocab * model.width)
    return 6 * weights + 12 * model.layers * model.width * length


def state_bytes(counted: int) -> StateBytes:
    return StateBytes(weights=FP32 * counted, gradients=FP32 * counted, optimizer=2 * FP32 * counted)


def activation_bytes(model: Model, vocab: int, length: int, precision: Literal["fp32", "bf16", "fp16"]) -> int:
    """Estimated activations of one sequence that the backward pass needs, with attention that stores no score matrix.

    Per block, 9 values of the width: inputs and outputs of both norms (4), qkv (3), the attention output (1), the
    residual (1); and the feed-forward layer before and after its activation. A Llama has narrower keys and values,
    also before their rotation, and four feed-forward layers: gate, its activation, up, their product.
    Then the logits, their gradient, and their softmax in fp32.
    """
    size = VALUE_BYTES[precision]
    each = 9 * model.width + 2 * model.inner
    if model.family == "llama":
        each = 8 * model.width + 3 * _keys_width(model) + 4 * model.inner
    blocks = model.layers * each * size
    head = vocab * (2 * size + FP32)
    return int(length * (blocks + (MASKED * head if model.masked else head)))


def _masked_heads(model: Model, vocab: int) -> int:
    """Beyond the other families: segments, pooler, the transform before the word head, its bias, the next sentence."""
    dense = model.width**2 + model.width
    return SEGMENTS * model.width + 2 * dense + 2 * model.width + vocab + 2 * model.width + 2


def _keys_width(model: Model) -> int:
    return model.width // model.heads * model.key_heads


def _block_matrices(model: Model) -> int:
    if model.family == "llama":
        attention = 2 * model.width**2 + 2 * model.width * _keys_width(model)  # queries and out, keys and values
        return attention + 3 * model.width * model.inner  # gate, up and down
    return 4 * model.width**2 + 2 * model.width * model.inner  # qkv (3), attention out (1), feed-forward in and out
