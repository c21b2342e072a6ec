"""Llama 2 and 3, with transformers' names of their weights.

Shapes: B batch, T time, L length, H heads, K heads of keys and values, D size of a head, W width, V vocabulary.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stoker.models import ModelSpec, Weights
from stoker.models.decoder import CachedDecoder, causal_mask
from stoker.models.initial_weights import ONES, Distribution
from stoker.models.layers import attention, score_extremes
from stoker.spec.model import Model, RopeScaling


class Norm(nn.Module):
    def __init__(self, shape: Model) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape.width))
        self.eps = shape.norm_eps

    def forward(self, x_BTW: Tensor) -> Tensor:
        return F.rms_norm(x_BTW.float(), self.weight.shape, self.weight, self.eps)


class Rotary(nn.Module):
    """Cosines and sines of the rotary position embedding. They follow from the shape, so they are not saved.

    They are computed again wherever the model is moved: a model on the meta device has none to move.
    """

    table_L2D: Tensor

    def __init__(self, shape: Model) -> None:
        super().__init__()
        self.context = shape.context
        self.frequencies = _frequencies(shape.width // shape.heads, shape.rope_theta, shape.rope_scaling)
        self.register_buffer("table_L2D", torch.empty(shape.context, 2, len(self.frequencies)), persistent=False)
        self._fill()

    def forward(self, length: int) -> Tensor:
        """Of the first positions, [T, 2, D / 2]."""
        return self.table_L2D[:length]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._fill()
        return self

    def _fill(self) -> None:
        device = self.table_L2D.device
        if device.type == "meta":
            return
        positions_L1 = torch.arange(self.context, dtype=torch.float32, device="cpu")[:, None]
        angles_LD = positions_L1 * torch.tensor(self.frequencies, dtype=torch.float32, device="cpu")
        self.table_L2D = torch.stack([angles_LD.cos(), angles_LD.sin()], dim=1).to(device)


def _frequencies(size: int, theta: float, scaling: RopeScaling | None) -> list[float]:
    """Computed exactly as the reference does: at a far position, the smallest difference is multiplied by it."""
    frequencies = 1.0 / (theta ** (torch.arange(0, size, 2, dtype=torch.float32, device="cpu") / size))
    if scaling is not None:
        waves = 2 * math.pi / frequencies
        slowed = torch.where(waves > scaling.original_context / scaling.low, frequencies / scaling.factor, frequencies)
        blend = (scaling.original_context / waves - scaling.low) / (scaling.high - scaling.low)
        blended = (1 - blend) * slowed / scaling.factor + blend * slowed
        between = (waves >= scaling.original_context / scaling.high) & (waves <= scaling.original_context / scaling.low)
        frequencies = torch.where(between, blended, slowed)
    values: list[float] = frequencies.tolist()
    return values


def rotated(x_BTHD: Tensor, rotary_T2D: Tensor) -> Tensor:
    """Rotate each pair of numbers, one from each half of a head, by its angle."""
    cos_T1D, sin_T1D = rotary_T2D.unsqueeze(-2).unbind(-3)
    a, b = x_BTHD.float().chunk(2, dim=-1)
    return torch.cat([a * cos_T1D - b * sin_T1D, b * cos_T1D + a * sin_T1D], dim=-1).to(x_BTHD.dtype)


class LlamaAttention(nn.Module):
    def __init__(self, shape: Model) -> None:
        super().__init__()
        self.size = shape.width // shape.heads
        self.scale = self.size**-0.5
        self.q_proj = nn.Linear(shape.width, shape.width, bias=False)
        self.k_proj = nn.Linear(shape.width, shape.key_heads * self.size, bias=False)
        self.v_proj = nn.Linear(shape.width, shape.key_heads * self.size, bias=False)
        self.o_proj = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x_BTW: Tensor, rotary_T2D: Tensor) -> Tensor:
        return self.attend(*self.heads_of(x_BTW, rotary_T2D))

    def heads_of(self, x_BTW: Tensor, rotary_T2D: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (project(x_BTW).unflatten(-1, (-1, self.size)) for project in (self.q_proj, self.k_proj, self.v_proj))
        return rotated(q, rotary_T2D).transpose(1, 2), rotated(k, rotary_T2D).transpose(1, 2), v.transpose(1, 2)

    def attend(self, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor) -> Tensor:
        y_BHTD = attention(q_BHTD, k_BKTD, v_BKTD, scale=self.scale)
        out_BTW: Tensor = self.o_proj(y_BHTD.transpose(1, 2).flatten(2))
        return out_BTW


class LlamaFeedForward(nn.Module):
    def __init__(self, shape: Model) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.inner, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.inner, bias=False)
        self.down_proj = nn.Linear(shape.inner, shape.width, bias=False)

    def forward(self, x_BTW: Tensor) -> Tensor:
        out_BTW: Tensor = self.down_proj(F.silu(self.gate_proj(x_BTW)) * self.up_proj(x_BTW))
        return out_BTW


class LlamaBlock(nn.Module):
    def __init__(self, shape: Model) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape)
        self.self_attn = LlamaAttention(shape)
        self.post_attention_layernorm = Norm(shape)
        self.mlp = LlamaFeedForward(shape)

    def forward(self, x_BTW: Tensor, rotary_T2D: Tensor) -> Tensor:
        x_BTW = x_BTW + self.self_attn(self.input_layernorm(x_BTW), rotary_T2D)
        out_BTW: Tensor = x_BTW + self.mlp(self.post_attention_layernorm(x_BTW))
        return out_BTW


class Llama(nn.Module):
    def __init__(self, shape: Model) -> None:
        super().__init__()
        assert shape.vocab is not None
        self.embed_tokens = nn.Embedding(shape.vocab, shape.width)
        self.layers = nn.ModuleList(LlamaBlock(shape) for _ in range(shape.layers))
        self.norm = Norm(shape)
        self.lm_head = None if shape.tied else nn.Linear(shape.width, shape.vocab, bias=False)
        self.rotary = Rotary(shape)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x_BTW = self.embed_tokens(tokens_BT)
        rotary_T2D = self.rotary(tokens_BT.shape[1])
        for block in self.layers:
            x_BTW = block(x_BTW, rotary_T2D)
        return F.linear(self.norm(x_BTW), self.head)

    @property
    def head(self) -> Tensor:
        return self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight


class LlamaDecoder(CachedDecoder):
    """The cached keys are rotated."""

    def __init__(self, model: nn.Module, rows: int, length: int) -> None:
        assert isinstance(model, Llama)
        self.model = model
        self.blocks = [block for block in model.layers if isinstance(block, LlamaBlock)]
        self.size = self.blocks[0].self_attn.size
        keys = self.blocks[0].self_attn.k_proj.out_features // self.size
        super().__init__(model, layers=len(self.blocks), rows=rows, heads=keys, length=length, head_size=self.size)
        self.head = self._transposed(model.head)
        self.layers = [[self._transposed(p) for p in block.parameters() if p.dim() == 2] for block in self.blocks]

    def _read(self, rows: list[int], tokens_RT: Tensor) -> None:
        rotary_T2D = self.model.rotary(tokens_RT.shape[1])
        x_RTW = self.model.embed_tokens(tokens_RT)
        for layer, block in enumerate(self.blocks):
            q_RHTD, k_RKTD, v_RKTD = block.self_attn.heads_of(block.input_layernorm(x_RTW), rotary_T2D)
            self._store(layer, rows, k_RKTD, v_RKTD)
            x_RTW = x_RTW + block.self_attn.attend(q_RHTD, k_RKTD, v_RKTD)
            x_RTW = x_RTW + block.mlp(block.post_attention_layernorm(x_RTW))

    def _step(self, tokens_B: Tensor, *, longest: int) -> Tensor:
        B, device = len(self.lengths), tokens_B.device
        lengths_B = torch.tensor(self.lengths, device=device)
        rows_B = torch.arange(B, device=device)
        mask = None if min(self.lengths) == longest else causal_mask(lengths_B, longest)
        rotary_B2D = self.model.rotary.table_L2D[lengths_B]
        x_BW = F.embedding(tokens_B, self.model.embed_tokens.weight)
        for block, layer, cache_B2KLD in zip(self.blocks, self.layers, self.cache_NB2HLD, strict=True):
            w_q, w_k, w_v, w_out, w_gate, w_up, w_down = layer
            y_BW = block.input_layernorm(x_BW)
            q_BHD, k_BKD, v_BKD = ((y_BW @ weight).view(B, -1, self.size) for weight in (w_q, w_k, w_v))
            cache_B2KLD[rows_B, 0, :, lengths_B] = rotated(k_BKD, rotary_B2D)
            cache_B2KLD[rows_B, 1, :, lengths_B] = v_BKD
            k_BKLD, v_BKLD = cache_B2KLD[:, :, :, : longest + 1].unbind(1)
            # The heads that share keys and values are computed as if they were positions: none attends to another.
            q_BKGD = rotated(q_BHD, rotary_B2D).view(B, k_BKLD.shape[1], -1, self.size)
            y_BKGD = F.scaled_dot_product_attention(q_BKGD, k_BKLD, v_BKLD, mask, scale=block.self_attn.scale)
            x_BW = x_BW + y_BKGD.reshape(B, -1) @ w_out
            y_BW = block.post_attention_layernorm(x_BW)
            x_BW = x_BW + (F.silu(y_BW @ w_gate) * (y_BW @ w_up)) @ w_down
        return torch.mm(self.model.norm(x_BW), self.head)


def initial(shape: Model, _name: str, dimensions: int) -> Distribution:
    return Distribution(std=shape.init_std) if dimensions == 2 else ONES


def from_hf(weights: Mapping[str, Tensor]) -> Weights:
    return {
        name.removeprefix("model."): tensor
        for name, tensor in weights.items()
        if not name.endswith(".rotary_emb.inv_freq")  # in old files
    }


def to_hf(weights: Mapping[str, Tensor]) -> Weights:
    return {name if name == HEAD else f"model.{name}": tensor for name, tensor in weights.items()}


HEAD = "lm_head.weight"
SPEC = ModelSpec(
    build=Llama,
    initial=initial,
    blocks="layers",
    decoder=LlamaDecoder,
    attention_extremes=partial(score_extremes, attention=LlamaAttention),
    from_hf=from_hf,
    to_hf=to_hf,
    tied=lambda shape: {HEAD: "embed_tokens.weight"} if shape.tied else {},
)
