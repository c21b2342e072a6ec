"""BERT with both its heads, and the names that transformers gives the weights of BertForPreTraining.

Rows of different lengths are either padded, or packed: concatenated, so that only attention distinguishes rows.

Shapes: B batch, T time, N tokens of packed rows, H heads, D size of a head, W width, V vocabulary, M masked positions.
"""

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stoker.models import ModelSpec, Weights
from stoker.models.initial_weights import ONES, ZEROS, Distribution
from stoker.models.layers import attention
from stoker.spec.estimate import SEGMENTS
from stoker.spec.model import Model

EPSILON = 1e-12


class Padded(NamedTuple):
    real_B11T: Tensor
    """Which positions hold a token."""


class Packed(NamedTuple):
    starts: Tensor
    """Where each row begins, and the end; the padding is split into rows of its own, which are ignored."""
    longest: int


class BertBlock(nn.Module):
    def __init__(self, shape: Model) -> None:
        super().__init__()
        W = shape.width
        self.query, self.key, self.value = nn.Linear(W, W), nn.Linear(W, W), nn.Linear(W, W)
        self.out, self.out_norm = nn.Linear(W, W), nn.LayerNorm(W, eps=EPSILON)
        self.up, self.down = nn.Linear(W, shape.inner), nn.Linear(shape.inner, W)
        self.down_norm = nn.LayerNorm(W, eps=EPSILON)
        self.heads, self.dropout = shape.heads, shape.dropout

    def forward(self, x: Tensor, rows: Padded | Packed) -> Tensor:
        x = self.out_norm(x + self._drop(self.out(self._attend(x, rows))))
        out: Tensor = self.down_norm(x + self._drop(self.down(F.gelu(self.up(x)))))
        return out

    def _attend(self, x: Tensor, rows: Padded | Packed) -> Tensor:
        weight = torch.cat([self.query.weight, self.key.weight, self.value.weight])  # one product is faster than three
        bias = torch.cat([self.query.bias, self.key.bias, self.value.bias])
        q, k, v = F.linear(x, weight, bias).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        if isinstance(rows, Packed):
            attend = _varlen()
            assert attend is not None
            return attend(q, k, v, rows.starts, rows.starts, rows.longest, rows.longest).flatten(-2)
        q_BHTD, k_BHTD, v_BHTD = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        dropout = self.dropout if self.training else 0.0
        scale = q.shape[-1] ** -0.5
        y_BHTD = attention(q_BHTD, k_BHTD, v_BHTD, rows.real_B11T, scale=scale, dropout=dropout)
        return y_BHTD.transpose(1, 2).flatten(2)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class Bert(nn.Module):
    def __init__(self, shape: Model) -> None:
        super().__init__()
        assert shape.vocab is not None
        W = shape.width
        self.words = nn.Embedding(shape.vocab, W)
        self.places = nn.Embedding(shape.context, W)
        self.segments = nn.Embedding(SEGMENTS, W)
        self.norm = nn.LayerNorm(W, eps=EPSILON)
        self.blocks = nn.ModuleList(BertBlock(shape) for _ in range(shape.layers))
        self.pooler = nn.Linear(W, W)
        self.transform, self.transform_norm = nn.Linear(W, W), nn.LayerNorm(W, eps=EPSILON)
        self.bias = nn.Parameter(torch.zeros(shape.vocab))
        self.next = nn.Linear(W, 2)
        self.dropout = shape.dropout

    def forward(
        self, tokens_BT: Tensor, segments_BT: Tensor, lengths_B: Tensor, chosen_M: Tensor, real_N: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits of the words at the chosen positions, and of whether each row's second sentence follows the first.

        Positions count over B × T. Every row has a token. `real_N` are the positions with a token, possibly with some
        padding at the end: where the device supports it, only these are computed.
        """
        T = tokens_BT.shape[1]
        if real_N is not None and self._packs(tokens_BT.device):
            firsts_B = lengths_B.cumsum(0) - lengths_B
            rows: Padded | Packed = _packed(lengths_B, len(real_N), T)
            x = self._embed(tokens_BT.flatten()[real_N], segments_BT.flatten()[real_N], real_N % T)
            chosen_M = firsts_B[chosen_M // T] + chosen_M % T
        else:
            at_T = torch.arange(T, device=tokens_BT.device)
            firsts_B = torch.arange(0, tokens_BT.numel(), T, device=tokens_BT.device)
            rows = Padded((at_T < lengths_B[:, None])[:, None, None])
            x = self._embed(tokens_BT, segments_BT, at_T)
        for block in self.blocks:
            x = block(x, rows)
        x_NW = x.reshape(-1, x.shape[-1])
        return self._words(x_NW[chosen_M]), self.next(torch.tanh(self.pooler(x_NW[firsts_B])))

    def everywhere(
        self, tokens_BT: Tensor, segments_BT: Tensor | None = None, lengths_B: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits of the words at every position, [B, T, V], and of the next sentence."""
        B, T = tokens_BT.shape
        if segments_BT is None:
            segments_BT = torch.zeros_like(tokens_BT)
        if lengths_B is None:
            lengths_B = torch.full((B,), T, device=tokens_BT.device)
        chosen_M = torch.arange(B * T, device=tokens_BT.device)
        words_MV, next_B2 = self(tokens_BT, segments_BT, lengths_B, chosen_M)
        return words_MV.view(B, T, -1), next_B2

    def _embed(self, tokens: Tensor, segments: Tensor, places: Tensor) -> Tensor:
        x = self.words(tokens) + self.segments(segments) + self.places(places)
        return F.dropout(self.norm(x), self.dropout, self.training)

    def _words(self, x_MW: Tensor) -> Tensor:
        x_MW = self.transform_norm(F.gelu(self.transform(x_MW)))
        return F.linear(x_MW, self.words.weight, self.bias)  # the head is the embedding, transposed

    def _packs(self, device: torch.device) -> bool:
        """The kernel needs a GPU and half precision, and has no dropout."""
        half = torch.is_autocast_enabled(device.type)
        return device.type == "cuda" and half and not (self.training and self.dropout) and _varlen() is not None


@cache
def _varlen() -> Callable[..., Tensor] | None:
    try:
        return cast(Callable[..., Tensor], import_module("torch.nn.attention.varlen").varlen_attn)
    except (ImportError, AttributeError):
        return None


def _packed(lengths_B: Tensor, total: int, longest: int) -> Packed:
    ends_B = lengths_B.cumsum(0)
    spare = torch.arange(1, total // longest + 2, device=lengths_B.device) * longest
    tail = (ends_B[-1:] + spare).clamp(max=total)
    starts = torch.cat([ends_B.new_zeros(1), ends_B, tail])
    return Packed(starts.to(torch.int32), longest)


def initial(shape: Model, name: str, dimensions: int) -> Distribution:
    if dimensions >= 2:
        return Distribution(std=shape.init_std)
    return ZEROS if name.endswith("bias") else ONES


NAMES = {
    "words": "bert.embeddings.word_embeddings",
    "places": "bert.embeddings.position_embeddings",
    "segments": "bert.embeddings.token_type_embeddings",
    "norm": "bert.embeddings.LayerNorm",
    "pooler": "bert.pooler.dense",
    "transform": "cls.predictions.transform.dense",
    "transform_norm": "cls.predictions.transform.LayerNorm",
    "next": "cls.seq_relationship",
}
BLOCK, BLOCK_NAMES = (
    "bert.encoder.layer.",
    {
        "query": "attention.self.query",
        "key": "attention.self.key",
        "value": "attention.self.value",
        "out": "attention.output.dense",
        "out_norm": "attention.output.LayerNorm",
        "up": "intermediate.dense",
        "down": "output.dense",
        "down_norm": "output.LayerNorm",
    },
)
BIAS = "cls.predictions.bias"
OLD = {"gamma": "weight", "beta": "bias"}  # of norms, in old files


def from_hf(weights: Mapping[str, Tensor]) -> Weights:
    own_names = {theirs: name for name, theirs in NAMES.items()}
    in_block = {theirs: name for name, theirs in BLOCK_NAMES.items()}
    renamed = {}
    for name, tensor in weights.items():
        if name.endswith(".position_ids"):
            continue  # a buffer in old files: 0, 1, 2 …
        module, _, last = name.rpartition(".")
        last = OLD.get(last, last)
        if name == BIAS:
            renamed["bias"] = tensor
        elif module.startswith(BLOCK):
            number, _, part = module.removeprefix(BLOCK).partition(".")
            renamed[f"blocks.{number}.{in_block.get(part, part)}.{last}"] = tensor
        else:
            renamed[f"{own_names.get(module, module)}.{last}"] = tensor
    return renamed


def to_hf(weights: Mapping[str, Tensor]) -> Weights:
    renamed = {}
    for name, tensor in weights.items():
        module, _, last = name.rpartition(".")
        if name == "bias":
            renamed[BIAS] = tensor
        elif module.startswith("blocks."):
            _, number, part = module.split(".")
            renamed[f"{BLOCK}{number}.{BLOCK_NAMES[part]}.{last}"] = tensor
        else:
            renamed[f"{NAMES[module]}.{last}"] = tensor
    return renamed


SPEC = ModelSpec(
    build=Bert,
    initial=initial,
    objective="masked",
    blocks="blocks",
    positions=("places.weight",),
    from_hf=from_hf,
    to_hf=to_hf,
    tied=lambda _: {"cls.predictions.decoder.weight": "words.weight", "cls.predictions.decoder.bias": "bias"},
    optional=("pooler.", "next."),
)
