"""`model`: the families, and the numbers that make one of them a model."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from stoker.spec.code import is_code
from stoker.spec.section import Code, Fraction, PositiveCount, Section
from stoker.spec.units import Count, Number


class RopeScaling(Section):
    factor: Annotated[Number, Field(ge=1)]
    """How much slower the slowest turns become: about how much longer the context is than it was."""
    low: Annotated[Number, Field(gt=0)] = 1.0
    """What turns less often than this in `original_context` is slowed by the whole `factor`."""
    high: Annotated[Number, Field(gt=0)] = 4.0
    """What turns more often than this in `original_context` is left alone; between the two it is blended."""
    original_context: PositiveCount = 8192
    """The context that the model had before."""

    @model_validator(mode="after")
    def _low_is_below_high(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low {self.low:g} is not below high {self.high:g}; write low: 1, high: 4")
        return self


OF_FAMILIES = {
    "dropout": ("gpt2", "bert"),
    "upcast_attention": ("gpt2",),
    "scale_attention_by_layer": ("gpt2",),
    "kv_heads": ("llama",),
    "rope_theta": ("llama",),
    "rope_scaling": ("llama",),
    "tied": ("llama",),
    "norm_eps": ("llama",),
}
"""What only some of our families have; code of the user's own may make of all of it what it likes."""


class Model(Section):
    family: Literal["gpt2", "llama", "bert"] | Code = "gpt2"
    """The architecture: one of ours, or `package.module:build`, a function of your own from these sizes to a module."""
    layers: Annotated[Count, Field(gt=0, le=10_000)] = 12
    """Transformer blocks."""
    heads: Annotated[Count, Field(gt=0, le=1 << 16)] = 12
    """Attention heads; they divide `width`."""
    width: Annotated[Count, Field(gt=0, le=1 << 20)] = 768
    """Size of the hidden state."""
    hidden: Annotated[Count, Field(gt=0, le=1 << 24)] | None = None
    """Width of the feed-forward's inner layer. Left out: 4 × `width`; Llama: 8/3 × `width`, up to a multiple of 256."""
    kv_heads: Annotated[Count, Field(gt=0, le=1 << 16)] | None = None
    """Llama: heads of keys and values, each shared by several of `heads`; they divide `heads`. Left out: as many."""
    context: Annotated[Count, Field(gt=0, le=1 << 30)] = 1024
    """Positions the model knows: the longest sequence it can read."""
    vocab: Annotated[Count, Field(gt=0, le=1 << 24)] | None = None
    """Rows of the embedding. Left out, it is the tokenizer's size."""
    dropout: Fraction = 0.0
    """Dropout on embeddings, attention and residuals while training."""
    init_std: Annotated[Number, Field(gt=0)] = 0.02
    """Standard deviation of the initial weights."""
    upcast_attention: bool = False
    """Compute attention scores in fp32 whatever the precision: steadier in fp16."""
    scale_attention_by_layer: bool = False
    """Divide the attention scores of block k by k (counted from 1): steadier in fp16."""
    rope_theta: Annotated[Number, Field(gt=0)] = 10_000.0
    """Llama: how slowly the slowest of its positions turns; 10000 in Llama 2, 500000 in Llama 3."""
    rope_scaling: RopeScaling | None = None
    """Turns of a Llama slowed for a longer context, as Llama 3.1 has them: `{factor: 8, low: 1, high: 4, original_context: 8192}`."""  # noqa: E501
    tied: bool = False
    """Llama: the output head is the embedding. GPT-2's always is."""
    norm_eps: Annotated[Number, Field(gt=0)] = 1e-5
    """Llama: what its norms add under the root."""

    @property
    def inner(self) -> int:
        """Width of the feed-forward's inner layer."""
        return self.hidden or default_inner(self.family, self.width)

    @property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def masked(self) -> bool:
        """It learns masked words and next sentences, from pairs of sentences."""
        return self.family == "bert"

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.width % self.heads and not is_code(self.family):
            near = max(1, round(self.width / self.heads)) * self.heads
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}; set width to {near}")
        return self

    @model_validator(mode="after")
    def _family_has_what_is_set(self) -> Self:
        for name, families in OF_FAMILIES.items():
            default = type(self).model_fields[name].default
            if getattr(self, name) != default and self.family not in families and not is_code(self.family):
                raise ValueError(
                    f"{name} means nothing to the family {self.family}; take it out: it is for {' and '.join(families)}"
                )
        return self

    @model_validator(mode="after")
    def _heads_can_be_shared_and_turned(self) -> Self:
        if self.family != "llama":
            return self
        if self.heads % self.key_heads:
            fit = max(n for n in range(1, self.key_heads + 1) if self.heads % n == 0)
            raise ValueError(f"kv_heads {self.kv_heads} does not divide heads {self.heads}; set kv_heads to {fit}")
        if self.width // self.heads % 2:
            raise ValueError(
                f"width {self.width} gives each of {self.heads} heads {self.width // self.heads} numbers, and it "
                f"turns pairs of them; set width to a multiple of {2 * self.heads}"
            )
        return self


def default_inner(family: str, width: int) -> int:
    """The feed-forward's inner width where nobody says."""
    return -(-8 * width // 3 // 256) * 256 if family == "llama" else 4 * width
