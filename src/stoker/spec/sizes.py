"""Parameters, FLOPs and bytes of a model, from its numbers alone.

Of a model of the user's own the numbers tell little: where `counted` is asked for, it is what the module itself has.
"""

from dataclasses import dataclass
from typing import Literal

from stoker.spec.code import is_code
from stoker.spec.run import Model

FP32 = 4
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
    """Every trained number once: the output head is the token embedding."""
    embeddings = (vocab + model.context) * model.width
    norms_and_biases = 13 * model.width  # two norms (4), qkv (3), attention out (1), feed-forward (4 and 1)
    return embeddings + model.layers * (_block_matrices(model) + norms_and_biases) + 2 * model.width


def flops_per_token(model: Model, vocab: int, length: int, *, counted: int) -> int:
    """FLOPs of training on one token, forward and backward, by the convention that published MFU figures use.

    Six for each weight of a matrix product (the head counts, looking up an embedding does not), and 12 · layers ·
    width · length for attention over the full square of scores, though a causal kernel needs only half of it.
    A model of the user's own counts six for each parameter.
    """
    if is_code(model.family):
        return 6 * counted
    weights = model.layers * _block_matrices(model) + vocab * model.width
    return 6 * weights + 12 * model.layers * model.width * length


def state_bytes(counted: int) -> StateBytes:
    return StateBytes(weights=FP32 * counted, gradients=FP32 * counted, optimizer=2 * FP32 * counted)


def activation_bytes(model: Model, vocab: int, length: int, precision: Literal["fp32", "bf16", "fp16"]) -> int:
    """An estimate of what the backward pass needs of one sequence, with attention that keeps no square of scores.

    In a block, 17 values of the width: both norms' inputs and outputs (4), qkv (3), attention's result (1), the
    feed-forward's inner layer before and after its activation (8), what is added back (1). Then the logits, their
    gradient, and their softmax in fp32.
    """
    size = VALUE_BYTES[precision]
    blocks = model.layers * 17 * model.width * size
    head = vocab * (2 * size + FP32)
    return length * (blocks + head)


def _block_matrices(model: Model) -> int:
    return 12 * model.width**2  # qkv (3), attention out (1), feed-forward in (4) and out (4)
