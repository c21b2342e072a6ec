"""GPT-2, with transformers' names of its weights.

Shapes: B batch, T time, H heads, D size of a head, W width, V vocabulary.
"""

import math
from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stoker.models import ModelSpec, Weights
from stoker.models.decoder import CachedDecoder, causal_mask
from stoker.models.initial_weights import ONES, ZEROS, Distribution
from stoker.models.layers import attention, score_extremes
from stoker.spec.model import Model


class GPT2Attention(nn.Module):
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
        return self.attend(*self.heads_of(x_BTW))

    def heads_of(self, x_BTW: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        B, T, W = x_BTW.shape
        q, k, v = self.c_attn(x_BTW).split(W, dim=2)
        shape = (B, T, self.heads, W // self.heads)
        return q.view(shape).transpose(1, 2), k.view(shape).transpose(1, 2), v.view(shape).transpose(1, 2)

    def attend(self, q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        if self.upcast:
            with torch.autocast(q_BHTD.device.type, enabled=False):
                y_BHTD = F.scaled_dot_product_attention(
                    q_BHTD.float(), k_BHTD.float(), v_BHTD.float(), dropout_p=dropout, is_causal=True, scale=self.scale
                ).to(v_BHTD.dtype)
        else:
            y_BHTD = attention(q_BHTD, k_BHTD, v_BHTD, scale=self.scale, dropout=dropout)
        y_BTW = y_BHTD.transpose(1, 2).flatten(2)
        return F.dropout(self.c_proj(y_BTW), self.dropout, self.training)


class GPT2FeedForward(nn.Module):
    def __init__(self, shape: Model) -> None:
        super().__init__()
        self.c_fc = nn.Linear(shape.width, shape.inner)
        self.c_proj = nn.Linear(shape.inner, shape.width)
        self.dropout = shape.dropout

    def forward(self, x_BTW: Tensor) -> Tensor:
        hidden = F.gelu(self.c_fc(x_BTW), approximate="tanh")
        return F.dropout(self.c_proj(hidden), self.dropout, self.training)


class GPT2Block(nn.Module):
    def __init__(self, shape: Model, layer: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(shape.width)
        self.attn = GPT2Attention(shape, layer)
        self.ln_2 = nn.LayerNorm(shape.width)
        self.mlp = GPT2FeedForward(shape)

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
        self.h = nn.ModuleList(GPT2Block(shape, layer) for layer in range(shape.layers))
        self.ln_f = nn.LayerNorm(shape.width)
        self.dropout = shape.dropout

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x_BTW = self.embed(tokens_BT)
        for block in self.h:
            x_BTW = block(x_BTW)
        return F.linear(self.ln_f(x_BTW), self.wte.weight)  # the head is the embedding, transposed

    def embed(self, tokens_BT: Tensor) -> Tensor:
        positions = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        return F.dropout(self.wte(tokens_BT) + self.wpe(positions), self.dropout, self.training)


class GPT2Decoder(CachedDecoder):
    """A step makes as few calls as possible: for a single token of a small model, a call takes longer than its
    arithmetic.
    """

    def __init__(self, model: nn.Module, rows: int, length: int) -> None:
        assert isinstance(model, GPT2)
        self.model = model
        self.blocks = [block for block in model.h if isinstance(block, GPT2Block)]
        self.heads, self.width = self.blocks[0].attn.heads, model.wte.embedding_dim
        size = self.width // self.heads
        super().__init__(model, layers=len(self.blocks), rows=rows, heads=self.heads, length=length, head_size=size)
        self.head = self._transposed(model.wte.weight)
        self.layers = [
            (block.attn.scale, *(self._transposed(p) if p.dim() == 2 else p for p in block.parameters()))
            for block in self.blocks
        ]

    def _read(self, rows: list[int], tokens_RT: Tensor) -> None:
        x_RTW = self.model.embed(tokens_RT)
        for layer, block in enumerate(self.blocks):
            q_RHTD, k_RHTD, v_RHTD = block.attn.heads_of(block.ln_1(x_RTW))
            self._store(layer, rows, k_RHTD, v_RHTD)
            x_RTW = x_RTW + block.attn.attend(q_RHTD, k_RHTD, v_RHTD)
            x_RTW = x_RTW + block.mlp(block.ln_2(x_RTW))

    def _step(self, tokens_B: Tensor, *, longest: int) -> Tensor:
        B, H, W = len(self.lengths), self.heads, (self.width,)
        x_BW, targets, mask = self._embed(tokens_B, longest)
        seen = self.cache_NB2HLD[:, :, :, :, : longest + 1]
        new = self.cache_NB2HLD[:, :, :, :, longest : longest + 1].unbind()
        for i, (layer, k_BHLD, v_BHLD) in enumerate(zip(self.layers, seen[:, :, 0], seen[:, :, 1], strict=True)):
            scale, g1, b1, w_qkv, b_qkv, w_out, b_out, g2, b2, w_up, b_up, w_down, b_down = layer
            qkv_B3H1D = torch.addmm(b_qkv, torch.layer_norm(x_BW, W, g1, b1), w_qkv).view(B, 3, H, 1, -1)
            if targets is None:
                new[i].copy_(qkv_B3H1D[:, 1:])
            else:
                self.cache_NB2HLD[i, targets[0], :, :, targets[1]] = qkv_B3H1D[:, 1:, :, 0]
            y_BH1D = F.scaled_dot_product_attention(qkv_B3H1D[:, 0], k_BHLD, v_BHLD, mask, scale=scale)
            x_BW = x_BW + torch.addmm(b_out, y_BH1D.reshape(B, -1), w_out)
            hidden = F.gelu(torch.addmm(b_up, torch.layer_norm(x_BW, W, g2, b2), w_up), approximate="tanh")
            x_BW = x_BW + torch.addmm(b_down, hidden, w_down)
        return torch.mm(self.model.ln_f(x_BW), self.head)

    def _embed(self, tokens_B: Tensor, longest: int) -> tuple[Tensor, tuple[Tensor, Tensor] | None, Tensor | None]:
        """Also, where rows differ in length: the position of each row's token, and the mask of later positions."""
        device, positions = tokens_B.device, self.model.wpe.weight
        x_BW = F.embedding(tokens_B, self.model.wte.weight)
        if min(self.lengths) == longest:
            return x_BW + positions[longest], None, None
        lengths_B = torch.tensor(self.lengths, device=device)
        mask = causal_mask(lengths_B, longest)
        return x_BW + F.embedding(lengths_B, positions), (torch.arange(len(lengths_B), device=device), lengths_B), mask


def initial(shape: Model, name: str, dimensions: int) -> Distribution:
    if name.endswith("bias"):
        return ZEROS
    if name.endswith("c_proj.weight"):  # added to the residual stream, twice in each layer
        return Distribution(std=shape.init_std / math.sqrt(2 * shape.layers))
    return Distribution(std=shape.init_std) if dimensions >= 2 else ONES


def from_hf(weights: Mapping[str, Tensor]) -> Weights:
    renamed = {}
    for name, tensor in weights.items():
        name = name.removeprefix("transformer.")
        if name == "lm_head.weight" or name.endswith((".attn.bias", ".attn.masked_bias")):
            continue  # tied to wte, and causal masks in old files
        renamed[name] = _transposed(name, tensor)
    return renamed


def to_hf(weights: Mapping[str, Tensor]) -> Weights:
    return {f"transformer.{name}": _transposed(name, tensor) for name, tensor in weights.items()}


def _transposed(name: str, tensor: Tensor) -> Tensor:
    """transformers stores GPT-2's projections transposed (Conv1D)."""
    if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        return tensor.t().contiguous()
    return tensor


SPEC = ModelSpec(
    build=GPT2,
    initial=initial,
    blocks="h",
    positions=("wpe.weight",),
    decoder=GPT2Decoder,
    attention_extremes=partial(score_extremes, attention=GPT2Attention),
    from_hf=from_hf,
    to_hf=to_hf,
    tied=lambda _: {"lm_head.weight": "wte.weight"},
)
