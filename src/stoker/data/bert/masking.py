"""Which tokens of a sample are masked: a pure function of (seed, epoch, sample), as in BERT.

Of the words chosen eight in ten become [MASK], one in ten stays, one in ten becomes any other word. The randomness of a
position in a sample is a hash of its number, so it does not depend on the process that draws it or on other samples.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.data.bert.pairs import Fields, Numbers
from stoker.data.order import mix
from stoker.data.wordpiece import MaskingVocabulary

NONE = -100  # marks a position that is not predicted
STEP = np.uint64(0x9E3779B97F4A7C15)  # of splitmix64: successive states lie far apart
CHOICE, FATE, WORD = (np.uint64(stream) for stream in (1, 2, 3))
MASKED, KEPT = 0.8, 0.9


@dataclass(frozen=True, kw_only=True, slots=True)
class Masking:
    seed: int = 0
    static: bool = False
    whole_words: bool = False
    predictions: int = 20
    rate: float = 0.15


class Masks(NamedTuple):
    tokens_NL: Numbers
    """The model's input."""
    goals_NL: Numbers
    """The original tokens at masked positions; NONE elsewhere."""


def fixed(rows: Fields) -> Masks:
    """The masks stored in the records: the first zero position ends the list."""
    goals_NL = np.full_like(rows.tokens_NL, NONE)
    row, slot = np.nonzero(np.cumprod(rows.positions_NP != 0, axis=1))
    goals_NL[row, rows.positions_NP[row, slot]] = rows.ids_NP[row, slot]
    return Masks(rows.tokens_NL, goals_NL)


def draw(rows: Fields, samples: Numbers, epochs: Numbers, masking: Masking, vocabulary: MaskingVocabulary) -> Masks:
    tokens_NL = rows.tokens_NL
    if masking.static:
        epochs = np.zeros_like(epochs)
    chances_NL = _chances(masking.seed, samples, epochs, tokens_NL.shape[1])
    real_NL = np.arange(tokens_NL.shape[1]) < rows.real_N[:, None]
    maskable_NL = real_NL & ~vocabulary.special[np.where(real_NL, tokens_NL, 0)]
    most_N = np.clip(np.rint(rows.real_N * masking.rate).astype(np.int64), 1, masking.predictions)
    order_NL = np.where(maskable_NL, mix(chances_NL, CHOICE) >> np.uint64(1), ~np.uint64(0))
    if masking.whole_words:
        chosen_NL = _whole(order_NL, maskable_NL, vocabulary.inner[np.where(real_NL, tokens_NL, 0)], most_N)
    else:
        rank_NL = np.argsort(np.argsort(order_NL, axis=1, kind="stable"), axis=1, kind="stable")
        chosen_NL = maskable_NL & (rank_NL < most_N[:, None])
    fate_NL = (mix(chances_NL, FATE) >> np.uint64(11)) * 2.0**-53
    others_NL = vocabulary.plain[(mix(chances_NL, WORD) % np.uint64(len(vocabulary.plain))).astype(np.int64)]
    given_NL = np.where(fate_NL < MASKED, vocabulary.mask, np.where(fate_NL < KEPT, tokens_NL, others_NL))
    return Masks(np.where(chosen_NL, given_NL, tokens_NL), np.where(chosen_NL, tokens_NL, NONE))


def listed(goals_NL: Numbers, predictions: int) -> tuple[Numbers, Numbers]:
    """Positions and tokens in the form of records, [N, predictions] each, in order and padded with zeros."""
    positions, ids = np.zeros((2, len(goals_NL), predictions), np.int64)
    row, place = np.nonzero(goals_NL != NONE)
    slot = np.arange(len(row)) - np.searchsorted(row, row)
    positions[row, slot], ids[row, slot] = place, goals_NL[row, place]
    return positions, ids


def _chances(seed: int, samples: Numbers, epochs: Numbers, length: int) -> NDArray[np.uint64]:
    key = mix(np.array([seed], np.uint64), STEP)
    key_N = mix(mix(epochs.astype(np.uint64) * STEP, key[0]) + samples.astype(np.uint64), STEP)
    return key_N[:, None] + np.arange(1, length + 1, dtype=np.uint64) * STEP


def _whole(
    order_NL: NDArray[np.uint64], maskable_NL: NDArray[np.bool_], inner_NL: NDArray[np.bool_], most_N: Numbers
) -> NDArray[np.bool_]:
    """Words in the order of their first piece's random number; a word that exceeds the limit is skipped."""
    chosen_NL = np.zeros_like(maskable_NL)
    for order, maskable, inner, most, chosen in zip(
        order_NL, maskable_NL, inner_NL, most_N.tolist(), chosen_NL, strict=True
    ):
        places = np.flatnonzero(maskable)
        if not len(places):
            continue
        continues = inner[places] & np.insert(np.diff(places) == 1, 0, False)
        firsts = np.flatnonzero(~continues)
        ends = np.append(firsts[1:], len(places))
        left = most
        for word in np.argsort(order[places[firsts]], kind="stable").tolist():
            size = int(ends[word] - firsts[word])
            if size <= left:
                chosen[places[firsts[word] : ends[word]]] = True
                left -= size
    return chosen_NL
