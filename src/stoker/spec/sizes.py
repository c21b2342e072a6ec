"""Parameters, FLOPs and bytes of a model, from its numbers alone.

Of a model of the user's own the numbers tell little: where `counted` is asked for, it is what the module itself has.
"""

from dataclasses import dataclass
from typing import Literal

from stoker.spec.code import is_code
from stoker.spec.model import Model

FP32 = 4
SEGMENTS = 2  # first and second sentence
MASKED = 0.2  # of a sequence's words, at most: only there a masked model computes logits
VALUE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class StateBytes:
    """What training holds whatever the batch: all in fp32, for mixed precision casts on the way into a product."""

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer


def parameters(model: Model, vocab: int) -> int:
    """Every trained number once: the output head is the token embedding, unless a Llama has one of its own."""
    if model.family == "llama":
        ends = vocab * model.width * (1 if model.tied else 2) + model.width
        return ends + model.layers * (_block_matrices(model) + 2 * model.width)
    embeddings = (vocab + model.context) * model.width
    norms_and_biases = 9 * model.width + model.inner  # two norms (4), qkv (3), attention out (1), feed-forward
    blocks = model.layers * (_block_matrices(model) + norms_and_biases)
    return embeddings + blocks + 2 * model.width + (_masked_heads(model, vocab) if model.masked else 0)


def flops_per_token(model: Model, vocab: int, length: int, *, counted: int) -> int:
    """FLOPs of training on one token, forward and backward, by the convention that published MFU figures use.

    Six for each weight of a matrix product (the head counts, looking up an embedding does not), and 12 · layers ·
    width · length for attention over the full square of scores, though a causal kernel needs only half of it.
    A model of the user's own counts six for each parameter. A masked model's heads are left out: few places need them.
    """
    if is_code(model.family):
        return 6 * counted
    weights = model.layers * _block_matrices(model) + (0 if model.masked else vocab * model.width)
    return 6 * weights + 12 * model.layers * model.width * length


def state_bytes(counted: int) -> StateBytes:
    return StateBytes(weights=FP32 * counted, gradients=FP32 * counted, optimizer=2 * FP32 * counted)


def activation_bytes(model: Model, vocab: int, length: int, precision: Literal["fp32", "bf16", "fp16"]) -> int:
    """An estimate of what the backward pass needs of one sequence, with attention that keeps no square of scores.

    In a block, 9 values of the width: both norms' inputs and outputs (4), qkv (3), attention's result (1), what is
    added back (1); and the feed-forward's inner layer before and after its activation. A Llama has narrower keys and
    values, both as they were before they were turned, and four inner layers: gate, its activation, up, their product.
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
    """Beside what every family has: segments, pooler, the transform before the words, their bias, the next sentence."""
    dense = model.width**2 + model.width
    return SEGMENTS * model.width + 2 * dense + 2 * model.width + vocab + 2 * model.width + 2


def _keys_width(model: Model) -> int:
    return model.width // model.heads * model.key_heads


def _block_matrices(model: Model) -> int:
    if model.family == "llama":
        attention = 2 * model.width**2 + 2 * model.width * _keys_width(model)  # queries and out, keys and values
        return attention + 3 * model.width * model.inner  # gate, up and down
    return 4 * model.width**2 + 2 * model.width * model.inner  # qkv (3), attention out (1), feed-forward in and out
