"""The order of samples: arithmetic on (seed, epoch, position), with no state and no knowledge of the world size.

Each epoch is a keyed permutation of its samples: a Feistel network over the next power of two, walked on until it lands
inside. Any position is found in constant time, so a resume does not read what it has already used.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

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


def batch(
    *,
    seed: int,
    samples: int,
    sequences: int,
    step: int,
    positions: int | None = None,
    since: tuple[int, int] = (0, 0),
) -> NDArray[np.int64]:
    """The samples of a step; the first step is 1. A run that draws `positions` in all may end with a short step.

    `since` is a step and the positions drawn up to it: a run may have gone on after a short step.
    """
    start = since[1] + (step - 1 - since[0]) * sequences
    stop = start + sequences
    if positions is not None:
        start, stop = min(start, positions), min(stop, positions)
    return sample_ids(seed=seed, samples=samples, start=start, stop=stop)


def spread(samples: int, number: int) -> NDArray[np.int64]:
    """So many of the samples, evenly over all of them: those that every evaluation takes."""
    return np.linspace(0, samples - 1, min(samples, number)).astype(np.int64)


def _permute(places: NDArray[np.uint64], samples: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    bits = max(2, (samples - 1).bit_length())
    ids = _feistel(places, bits, keys)
    outside = ids >= samples
    while outside.any():  # fewer than half of the domain (of four, for one sample) lie outside: few walk on twice
        ids[outside] = _feistel(ids[outside], bits, keys)
        outside = ids >= samples
    return ids.astype(np.int64)


def _feistel(values: NDArray[np.uint64], bits: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A permutation of [0, 2**bits): each round xors one half with a hash of the other, which can be undone."""
    low_bits, high_bits = bits // 2, bits - bits // 2
    low = values & np.uint64((1 << low_bits) - 1)
    high = values >> np.uint64(low_bits)
    for i in range(0, ROUNDS, 2):
        high ^= _hash(low, keys[i]) >> np.uint64(64 - high_bits)
        low ^= _hash(high, keys[i + 1]) >> np.uint64(64 - low_bits)
    return (high << np.uint64(low_bits)) | low


def _hash(values: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: every bit of the input moves every bit of the output."""
    mixed = values ^ key
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _keys(seed: int, epoch: int) -> NDArray[np.uint64]:
    digest = hashlib.blake2b(seed.to_bytes(8, "little") + epoch.to_bytes(8, "little")).digest()
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)
