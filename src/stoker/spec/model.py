"""`model`: the family and the sizes of a model."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from stoker.spec.code import is_code
from stoker.spec.section import Code, Fraction, PositiveCount, Section
from stoker.spec.units import Count, Number


class RopeScaling(Section):
    factor: Annotated[Number, Field(ge=1)]
    """By how much the lowest frequencies are reduced: about how much longer the context becomes."""
    low: Annotated[Number, Field(gt=0)] = 1.0
    """Frequencies with fewer rotations than this in `original_context` are divided by `factor`."""
    high: Annotated[Number, Field(gt=0)] = 4.0
    """Frequencies with more rotations than this in `original_context` stay; those between are interpolated."""
    original_context: PositiveCount = 8192
    """The context that the model was trained with before."""

    @model_validator(mode="after")
    def _low_is_below_high(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low {self.low:g} is not below high {self.high:g}; write low: 1, high: 4")
        return self


FAMILY_FIELDS = {
    "dropout": ("gpt2", "bert"),
    "upcast_attention": ("gpt2",),
    "scale_attention_by_layer": ("gpt2",),
    "kv_heads": ("llama",),
    "rope_theta": ("llama",),
    "rope_scaling": ("llama",),
    "tied": ("llama",),
    "norm_eps": ("llama",),
}
"""Fields that only some of our families use; a user's own model may use all of them."""


class Model(Section):
    family: Literal["gpt2", "llama", "bert"] | Code = "gpt2"
    """The architecture: one of ours, or `package.module:build`, your own function from these sizes to a module."""
    layers: Annotated[Count, Field(gt=0, le=10_000)] = 12
    """Transformer blocks."""
    heads: Annotated[Count, Field(gt=0, le=1 << 16)] = 12
    """Attention heads; must divide `width`."""
    width: Annotated[Count, Field(gt=0, le=1 << 20)] = 768
    """Size of the hidden state."""
    hidden: Annotated[Count, Field(gt=0, le=1 << 24)] | None = None
    """Width of the feed-forward layer. Default: 4 × `width`; Llama: 8/3 × `width`, rounded up to a multiple of 256."""
    kv_heads: Annotated[Count, Field(gt=0, le=1 << 16)] | None = None
    """Llama: key and value heads, for grouped-query attention; must divide `heads`. Default: `heads`."""
    context: Annotated[Count, Field(gt=0, le=1 << 30)] = 1024
    """Longest sequence that the model can read, in tokens."""
    vocab: Annotated[Count, Field(gt=0, le=1 << 24)] | None = None
    """Size of the vocabulary. Default: the tokenizer's."""
    dropout: Fraction = 0.0
    """Dropout on embeddings, attention and residuals while training."""
    init_std: Annotated[Number, Field(gt=0)] = 0.02
    """Standard deviation of the initial weights."""
    upcast_attention: bool = False
    """Compute attention scores in fp32 at any precision: more stable in fp16."""
    scale_attention_by_layer: bool = False
    """Divide the attention scores of block k by k (counted from 1): more stable in fp16."""
    rope_theta: Annotated[Number, Field(gt=0)] = 10_000.0
    """Llama: base of the rotary position frequencies; 10000 in Llama 2, 500000 in Llama 3."""
    rope_scaling: RopeScaling | None = None
    """Llama: rotary frequencies scaled for a longer context, as in Llama 3.1: `{factor: 8, low: 1, high: 4, original_context: 8192}`."""  # noqa: E501
    tied: bool = False
    """Llama: share the output head with the embedding, as GPT-2 always does."""
    norm_eps: Annotated[Number, Field(gt=0)] = 1e-5
    """Llama: epsilon of its RMS norms."""

    @property
    def inner(self) -> int:
        """Width of the feed-forward layer."""
        return self.hidden or default_inner(self.family, self.width)

    @property
    def key_heads(self) -> int:
        """Key and value heads."""
        return self.kv_heads or self.heads

    @property
    def masked(self) -> bool:
        """Trained to predict masked words and next sentences, on pairs of sentences."""
        return self.family == "bert"

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.width % self.heads and not is_code(self.family):
            near = max(1, round(self.width / self.heads)) * self.heads
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}; set width to {near}")
        return self

    @model_validator(mode="after")
    def _fields_fit_the_family(self) -> Self:
        for name, families in FAMILY_FIELDS.items():
            default = type(self).model_fields[name].default
            if getattr(self, name) != default and self.family not in families and not is_code(self.family):
                raise ValueError(
                    f"{name} has no effect on the family {self.family}; remove it: it is for {' and '.join(families)}"
                )
        return self

    @model_validator(mode="after")
    def _llama_heads_fit(self) -> Self:
        if self.family != "llama":
            return self
        if self.heads % self.key_heads:
            fit = max(n for n in range(1, self.key_heads + 1) if self.heads % n == 0)
            raise ValueError(f"kv_heads {self.kv_heads} does not divide heads {self.heads}; set kv_heads to {fit}")
        if self.width // self.heads % 2:
            raise ValueError(
                f"width {self.width} gives each of {self.heads} heads an odd size of {self.width // self.heads}, and "
                f"rotary positions need pairs; set width to a multiple of {2 * self.heads}"
            )
        return self


def default_inner(family: str, width: int) -> int:
    """The feed-forward width where `hidden` is not set."""
    return -(-8 * width // 3 // 256) * 256 if family == "llama" else 4 * width
