"""GPT-2, with the names that transformers gives its weights.

Shapes: B batch, T time, H heads, D size of a head, W width, V vocabulary.
"""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stoker.spec.run import Model
from stoker.train.models import ModelSpec, Weights

# Up to this length a CPU trains faster in bf16 with the whole square of scores: torch's flash kernel spends six times
# its forward on its backward there (14M parameters, length 256, 2 cores with AMX: 270 of 1,130 ms a step).
PLAIN_ON_CPU = 512


class Attention(nn.Module):
    def __init__(self, shape: Model, layer: int) -> None:
        super().__init__()
        self.c_attn = nn.Linear(shape.width, 3 * shape.width)
        self.c_proj = nn.Linear(shape.width, shape.width)
        self.heads = shape.heads
        self.dropout = shape.dropout
        self.upcast = shape.upcast_attention
        self.scale = (shape.width // shape.heads) ** -0.5
        if shape.scale_attention_by_layer:
            self.scale /= layer + 1

    def forward(self, x_BTW: Tensor) -> Tensor:
        q_BHTD, k_BHTD, v_BHTD = self.heads_of(x_BTW)
        dropout = self.dropout if self.training else 0.0
        if self.upcast:
            with torch.autocast(x_BTW.device.type, enabled=False):
                y_BHTD = F.scaled_dot_product_attention(
                    q_BHTD.float(), k_BHTD.float(), v_BHTD.float(), dropout_p=dropout, is_causal=True, scale=self.scale
                ).to(v_BHTD.dtype)
        elif _faster_plain(q_BHTD):
            y_BHTD = plain_attention(q_BHTD, k_BHTD, v_BHTD, scale=self.scale, dropout=dropout)
        else:
            y_BHTD = F.scaled_dot_product_attention(
                q_BHTD, k_BHTD, v_BHTD, dropout_p=dropout, is_causal=True, scale=self.scale
            )
        y_BTW = y_BHTD.transpose(1, 2).reshape(x_BTW.shape)
        return F.dropout(self.c_proj(y_BTW), self.dropout, self.training)

    def heads_of(self, x_BTW: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        B, T, W = x_BTW.shape
        q, k, v = self.c_attn(x_BTW).split(W, dim=2)
        shape = (B, T, self.heads, W // self.heads)
        return q.view(shape).transpose(1, 2), k.view(shape).transpose(1, 2), v.view(shape).transpose(1, 2)


def _faster_plain(q_BHTD: Tensor) -> bool:
    return q_BHTD.device.type == "cpu" and q_BHTD.dtype != torch.float32 and q_BHTD.shape[2] <= PLAIN_ON_CPU


def plain_attention(q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, *, scale: float, dropout: float) -> Tensor:
    T = q_BHTD.shape[2]
    future = torch.ones(T, T, dtype=torch.bool, device=q_BHTD.device).triu(1)
    scores_BHTT = ((q_BHTD * scale) @ k_BHTD.transpose(2, 3)).float()
    weights_BHTT = torch.softmax(scores_BHTT.masked_fill(future, -math.inf), dim=-1).to(v_BHTD.dtype)
    return F.dropout(weights_BHTT, dropout, dropout > 0) @ v_BHTD


class FeedForward(nn.Module):
    def __init__(self, shape: Model) -> None:
        super().__init__()
        self.c_fc = nn.Linear(shape.width, 4 * shape.width)
        self.c_proj = nn.Linear(4 * shape.width, shape.width)
        self.dropout = shape.dropout

    def forward(self, x_BTW: Tensor) -> Tensor:
        hidden = F.gelu(self.c_fc(x_BTW), approximate="tanh")
        return F.dropout(self.c_proj(hidden), self.dropout, self.training)


class Block(nn.Module):
    def __init__(self, shape: Model, layer: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(shape.width)
        self.attn = Attention(shape, layer)
        self.ln_2 = nn.LayerNorm(shape.width)
        self.mlp = FeedForward(shape)

    def forward(self, x_BTW: Tensor) -> Tensor:
        x_BTW = x_BTW + self.attn(self.ln_1(x_BTW))
        out: Tensor = x_BTW + self.mlp(self.ln_2(x_BTW))
        return out


class GPT2(nn.Module):
    def __init__(self, shape: Model) -> None:
        super().__init__()
        assert shape.vocab is not None
        self.wte = nn.Embedding(shape.vocab, shape.width)
        self.wpe = nn.Embedding(shape.context, shape.width)
        self.h = nn.ModuleList(Block(shape, layer) for layer in range(shape.layers))
        self.ln_f = nn.LayerNorm(shape.width)
        self.dropout = shape.dropout
        self._initialise(shape)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x_BTW = self.embed(tokens_BT)
        for block in self.h:
            x_BTW = block(x_BTW)
        return F.linear(self.ln_f(x_BTW), self.wte.weight)  # the head is the embedding, transposed

    def embed(self, tokens_BT: Tensor) -> Tensor:
        positions = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        return F.dropout(self.wte(tokens_BT) + self.wpe(positions), self.dropout, self.training)

    def _initialise(self, shape: Model) -> None:
        for name, p in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(p)
            elif name.endswith("c_proj.weight"):  # what adds to the residual stream: once in attention, once after it
                nn.init.normal_(p, std=shape.init_std / math.sqrt(2 * shape.layers))
            elif p.dim() >= 2:
                nn.init.normal_(p, std=shape.init_std)


def build(shape: Model) -> nn.Module:
    return GPT2(shape)


@torch.no_grad()
def attention_extremes(model: nn.Module, tokens_BT: Tensor) -> list[tuple[float, float]]:
    assert isinstance(model, GPT2)
    T = tokens_BT.shape[1]
    future = torch.ones(T, T, dtype=torch.bool, device=tokens_BT.device).triu(1)
    extremes = []
    x_BTW = model.embed(tokens_BT)
    for block in model.h:
        assert isinstance(block, Block)
        q_BHTD, k_BHTD, _ = block.attn.heads_of(block.ln_1(x_BTW))
        scores = q_BHTD.float() @ k_BHTD.float().transpose(2, 3) * block.attn.scale
        largest = scores.masked_fill(future, -math.inf).max().item()
        smallest = scores.masked_fill(future, math.inf).min().item()
        extremes.append((largest, smallest))
        x_BTW = block(x_BTW)
    return extremes


def from_hf(weights: Mapping[str, Tensor]) -> Weights:
    ours = {}
    for name, tensor in weights.items():
        name = name.removeprefix("transformer.")
        if name == "lm_head.weight" or name.endswith((".attn.bias", ".attn.masked_bias")):
            continue  # tied to wte, and the causal masks of old files
        ours[name] = _transposed(name, tensor)
    return ours


def to_hf(weights: Mapping[str, Tensor]) -> Weights:
    return {f"transformer.{name}": _transposed(name, tensor) for name, tensor in weights.items()}


def _transposed(name: str, tensor: Tensor) -> Tensor:
    """transformers keeps GPT-2's projections the other way round (Conv1D)."""
    if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        return tensor.t().contiguous()
    return tensor


SPEC = ModelSpec(build=build, attention_extremes=attention_extremes, from_hf=from_hf, to_hf=to_hf)
