"""Layers that several model families share.

Shapes: B batch, T time, H heads, K heads of keys and values, G heads that share such a head, D size of a head.
"""

import math
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Up to this length a CPU trains faster in bf16 with the whole square of scores: the backward of torch's flash kernel
# takes six times as long as its forward (14M parameters, length 256, 2 cores with AMX: 270 of 1,130 ms a step).
PLAIN_ON_CPU = 512


def attention(
    q_BHTD: Tensor,
    k_BKTD: Tensor,
    v_BKTD: Tensor,
    real_B11T: Tensor | None = None,
    *,
    scale: float,
    dropout: float = 0.0,
) -> Tensor:
    """Over the positions that hold a token, `real_B11T`; without it, causal.

    Several consecutive heads may share one head of keys and values.
    """
    if _faster_plain(q_BHTD):
        return plain_attention(q_BHTD, k_BKTD, v_BKTD, real_B11T, scale=scale, dropout=dropout)
    shared, causal = q_BHTD.shape[1] != k_BKTD.shape[1], real_B11T is None
    return F.scaled_dot_product_attention(
        q_BHTD, k_BKTD, v_BKTD, real_B11T, dropout_p=dropout, is_causal=causal, scale=scale, enable_gqa=shared
    )


def plain_attention(
    q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, real_B11T: Tensor | None = None, *, scale: float, dropout: float
) -> Tensor:
    B, H, T, D = q_BHTD.shape
    K = k_BKTD.shape[1]
    if real_B11T is None:
        hidden = torch.ones(T, T, dtype=torch.bool, device=q_BHTD.device).triu(1)
    else:
        hidden = ~real_B11T[:, :, None]
    q_BKND = (q_BHTD * scale).reshape(B, K, H // K * T, D)  # heads that share keys are stacked
    scores_BKGTT = (q_BKND @ k_BKTD.transpose(2, 3)).float().view(B, K, H // K, T, T)
    weights_BKGTT = torch.softmax(scores_BKGTT.masked_fill(hidden, -math.inf), dim=-1).to(v_BKTD.dtype)
    weights_BKNT = F.dropout(weights_BKGTT, dropout, dropout > 0).view(B, K, -1, T)
    return (weights_BKNT @ v_BKTD).view(B, H, T, D)


def _faster_plain(q_BHTD: Tensor) -> bool:
    return q_BHTD.device.type == "cpu" and q_BHTD.dtype != torch.float32 and q_BHTD.shape[2] <= PLAIN_ON_CPU


class ScoredAttention(Protocol):
    scale: float

    def heads_of(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values: the arguments are those of the module's forward."""


@torch.no_grad()
def score_extremes(model: nn.Module, tokens_BT: Tensor, *, attention: type[nn.Module]) -> list[tuple[float, float]]:
    """The largest and the smallest causal attention score of each layer, whose attention is of that class.

    Recorded by hooks in an ordinary forward pass, so that it works however the model is split over workers.
    """
    extremes: list[tuple[float, float]] = []

    def record(module: nn.Module, inputs: tuple[Tensor, ...], _output: Tensor) -> None:
        scored = cast(ScoredAttention, module)
        q_BHTD, k_BKTD, _ = scored.heads_of(*inputs)
        extremes.append(_extremes(q_BHTD, k_BKTD, scale=scored.scale))

    handles = [module.register_forward_hook(record) for module in model.modules() if isinstance(module, attention)]
    try:
        model(tokens_BT)
    finally:
        for handle in handles:
            handle.remove()
    return extremes


def _extremes(q_BHTD: Tensor, k_BKTD: Tensor, *, scale: float) -> tuple[float, float]:
    T = q_BHTD.shape[2]
    future = torch.ones(T, T, dtype=torch.bool, device=q_BHTD.device).triu(1)
    k_BHTD = k_BKTD.repeat_interleave(q_BHTD.shape[1] // k_BKTD.shape[1], dim=1)
    scores = q_BHTD.float() @ k_BHTD.float().transpose(2, 3) * scale
    return scores.masked_fill(future, -math.inf).max().item(), scores.masked_fill(future, math.inf).min().item()
