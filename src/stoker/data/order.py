"""The order of samples: arithmetic on (seed, epoch, position), with no state and no knowledge of the world size.

Each epoch is a keyed permutation of its samples: a Feistel network over the next power of two, applied until the result
is inside. Any position takes constant time, so a resume need not go through the samples used before.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from stoker.spec.data import BLOCK

ROUNDS = 8  # a 64-byte digest has eight keys of 64 bits; four rounds already pass as random


def sample_ids(*, seed: int, samples: int, start: int, stop: int) -> NDArray[np.int64]:
    """The samples at positions start..stop-1. Position p is in epoch p // samples."""
    if samples < 1:
        raise ValueError("there are no samples to draw from")
    parts = [np.empty(0, np.int64)]
    for epoch in range(start // samples, (stop - 1) // samples + 1):
        first, last = max(start - epoch * samples, 0), min(stop - epoch * samples, samples)
        parts.append(_permute(np.arange(first, last, dtype=np.uint64), samples, _keys(seed, epoch)))
    return np.concatenate(parts)


class Drawn(NamedTuple):
    ids: NDArray[np.int64]
    epochs: NDArray[np.int64]
    """How often each of them was drawn before."""


class Order(Protocol):
    def draw(self, start: int, stop: int) -> Drawn:
        """The samples at positions start..stop-1 of a run."""


@dataclass(frozen=True, slots=True)
class Shuffled:
    """All samples in one order, then all of them in another."""

    seed: int
    samples: int

    def draw(self, start: int, stop: int) -> Drawn:
        ids = sample_ids(seed=self.seed, samples=self.samples, start=start, stop=stop)
        return Drawn(ids, np.arange(start, stop) // self.samples)


@dataclass(frozen=True, slots=True)
class Windowed:
    """Window after window, each in its own order, so that a position needs only the windows up to its own.

    From the second epoch on all samples exist, and each epoch is shuffled as a whole.
    """

    seed: int
    samples: int
    """Samples so far. A window that is not complete yet must not be drawn from."""
    window: int
    """Samples in each window but the last."""

    def draw(self, start: int, stop: int) -> Drawn:
        parts = [np.empty(0, np.int64)]
        seed = _subseed(self.seed, "window")
        for number in range(start // self.window, (min(stop, self.samples) - 1) // self.window + 1):
            first = number * self.window
            size = min(self.window, self.samples - first)
            places = np.arange(max(start - first, 0), min(stop - first, size), dtype=np.uint64)
            parts.append(first + _permute(places, size, _keys(seed, number)))
        if stop > self.samples:
            parts.append(sample_ids(seed=self.seed, samples=self.samples, start=max(start, self.samples), stop=stop))
        return Drawn(np.concatenate(parts), np.arange(start, stop) // self.samples)


@dataclass(frozen=True, slots=True)
class Mixed:
    """Blocks of positions in which every source has its exact share; each source has its own epochs."""

    seed: int
    weights: tuple[float, ...]
    samples: tuple[int, ...]
    """Of each source; the ids of a source follow those of the source before it."""

    def draw(self, start: int, stop: int) -> Drawn:
        drawn = [self._in_block(block, start, stop) for block in range(start // BLOCK, (stop - 1) // BLOCK + 1)]
        empty = np.empty(0, np.int64)
        return Drawn(
            np.concatenate([empty, *(part.ids for part in drawn)]),
            np.concatenate([empty, *(part.epochs for part in drawn)]),
        )

    def _in_block(self, block: int, start: int, stop: int) -> Drawn:
        places = np.arange(max(start - block * BLOCK, 0), min(stop - block * BLOCK, BLOCK), dtype=np.uint64)
        mixed = _permute(places, BLOCK, _keys(_subseed(self.seed, "mix"), block))
        ids, epochs = np.empty_like(mixed), np.empty_like(mixed)
        first = offset = 0
        for source, (share, samples) in enumerate(zip(shares(self.weights), self.samples, strict=True)):
            from_source = (mixed >= first) & (mixed < first + share)
            numbers = block * share + mixed[from_source] - first  # positions in the source's own order
            ids[from_source] = offset + _at(numbers, _subseed(self.seed, f"source {source}"), samples)
            epochs[from_source] = numbers // samples
            first, offset = first + share, offset + samples
        return Drawn(ids, epochs)


def shares(weights: Sequence[float]) -> list[int]:
    """How many samples of a block each source has, by the largest remainders, so that they add up."""
    total = sum(map(Fraction, weights))
    exact = [Fraction(weight) * BLOCK / total for weight in weights]
    counts = [math.floor(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda source: counts[source] - exact[source])
    for source in by_remainder[: BLOCK - sum(counts)]:
        counts[source] += 1
    return counts


def batch(
    order: Order, *, sequences: int, step: int, positions: int | None = None, since: tuple[int, int] = (0, 0)
) -> Drawn:
    """The samples of a step; the first step is 1. A run that draws `positions` in all may end with a short step.

    `since` is a step and the positions drawn up to it: a run may have continued after a short step.
    """
    start = since[1] + (step - 1 - since[0]) * sequences
    stop = start + sequences
    if positions is not None:
        start, stop = min(start, positions), min(stop, positions)
    return order.draw(start, stop)


def spread(samples: int, number: int) -> NDArray[np.int64]:
    """A number of samples, evenly spread over all: the same for every evaluation."""
    return np.linspace(0, samples - 1, min(samples, number)).astype(np.int64)


def _permute(places: NDArray[np.uint64], samples: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    bits = max(2, (samples - 1).bit_length())
    ids = _feistel(places, bits, keys)
    outside = ids >= samples
    while outside.any():  # except in tiny sets, less than half of the domain is outside: few need a second step
        ids[outside] = _feistel(ids[outside], bits, keys)
        outside = ids >= samples
    return ids.astype(np.int64)


def _feistel(values: NDArray[np.uint64], bits: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A permutation of [0, 2**bits): each round xors one half with a hash of the other, which is reversible."""
    low_bits, high_bits = bits // 2, bits - bits // 2
    low = values & np.uint64((1 << low_bits) - 1)
    high = values >> np.uint64(low_bits)
    for i in range(0, ROUNDS, 2):
        high ^= mix(low, keys[i]) >> np.uint64(64 - high_bits)
        low ^= mix(high, keys[i + 1]) >> np.uint64(64 - low_bits)
    return (high << np.uint64(low_bits)) | low


def mix(values: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    """The finalizer of splitmix64: every input bit affects every output bit."""
    mixed = values ^ key
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _at(numbers: NDArray[np.int64], seed: int, samples: int) -> NDArray[np.int64]:
    """The samples of a shuffled source at these positions, in any order."""
    ids = np.empty_like(numbers)
    epochs = numbers // samples
    for epoch in np.unique(epochs).tolist():
        in_epoch = epochs == epoch
        ids[in_epoch] = _permute((numbers[in_epoch] % samples).astype(np.uint64), samples, _keys(seed, epoch))
    return ids


def _subseed(seed: int, purpose: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed} {purpose}".encode(), digest_size=8).digest(), "little")


def _keys(seed: int, epoch: int) -> NDArray[np.uint64]:
    digest = hashlib.blake2b(seed.to_bytes(8, "little") + epoch.to_bytes(8, "little")).digest()
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)
