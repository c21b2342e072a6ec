"""What several of our models are made of.

Shapes: B batch, T time, H heads, K heads of keys and values, G heads that share one of these, D size of a head.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

# Up to this length a CPU trains faster in bf16 with the whole square of scores: torch's flash kernel spends six times
# its forward on its backward there (14M parameters, length 256, 2 cores with AMX: 270 of 1,130 ms a step).
PLAIN_ON_CPU = 512
# A CPU multiplies a few rows up to twice as fast by matrices that lie the other way round. A copy of them costs a
# moment and their memory: up to so many bytes it is made.
LAID_OUT_ANEW = 1 << 30


def attention(
    q_BHTD: Tensor,
    k_BKTD: Tensor,
    v_BKTD: Tensor,
    real_B11T: Tensor | None = None,
    *,
    scale: float,
    dropout: float = 0.0,
) -> Tensor:
    """Over the places that hold a token, or, where none are named, over what came before.

    Several heads in a row may share one of keys and values.
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
    q_BKND = (q_BHTD * scale).reshape(B, K, H // K * T, D)  # the heads that share keys, below each other
    scores_BKGTT = (q_BKND @ k_BKTD.transpose(2, 3)).float().view(B, K, H // K, T, T)
    weights_BKGTT = torch.softmax(scores_BKGTT.masked_fill(hidden, -math.inf), dim=-1).to(v_BKTD.dtype)
    weights_BKNT = F.dropout(weights_BKGTT, dropout, dropout > 0).view(B, K, -1, T)
    return (weights_BKNT @ v_BKTD).view(B, H, T, D)


def _faster_plain(q_BHTD: Tensor) -> bool:
    return q_BHTD.device.type == "cpu" and q_BHTD.dtype != torch.float32 and q_BHTD.shape[2] <= PLAIN_ON_CPU


def score_extremes(q_BHTD: Tensor, k_BKTD: Tensor, *, scale: float) -> tuple[float, float]:
    """The largest and the smallest attention score, of those that count."""
    T = q_BHTD.shape[2]
    future = torch.ones(T, T, dtype=torch.bool, device=q_BHTD.device).triu(1)
    k_BHTD = k_BKTD.repeat_interleave(q_BHTD.shape[1] // k_BKTD.shape[1], dim=1)
    scores = q_BHTD.float() @ k_BHTD.float().transpose(2, 3) * scale
    return scores.masked_fill(future, -math.inf).max().item(), scores.masked_fill(future, math.inf).min().item()


def sideways(weight: Tensor, *, copied: bool) -> Tensor:
    turned = weight.detach().t()
    return turned.contiguous() if copied and weight.device.type == "cpu" else turned


def hidden_places(lengths_B: Tensor, longest: int) -> Tensor:
    """A mask for rows of different lengths: each sees up to the place of its newest token."""
    later_BL = torch.arange(longest + 1, device=lengths_B.device) > lengths_B[:, None]
    return torch.zeros(later_BL.shape, device=lengths_B.device).masked_fill_(later_BL, -math.inf)[:, None, None]
