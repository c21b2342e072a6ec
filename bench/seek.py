"""Measures how long a resumed run takes to find its step in a billion tokens: open, find the step, read its batch.

python bench/seek.py
"""

import statistics
import tempfile
import time
from pathlib import Path

from stoker.data import order
from stoker.data.shards import Index, Shard, TokenSet

SHARDS, SHARD_TOKENS = 1000, 1_000_000
SEQUENCES, LENGTH = 512, 1024
STEPS = (1, 1000, 123_456, 10**9)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shards = [Shard(file=f"train-{i:05d}.bin", tokens=SHARD_TOKENS, sha256="") for i in range(SHARDS)]
        for shard in shards:
            with open(folder / shard.file, "wb") as file:
                file.truncate(2 * SHARD_TOKENS)  # sparse: full length, no disk blocks
        Index(
            key="sparse", dtype="uint16", vocab=50257, end=0, tokenizer="", trained=None, documents=1, bytes=1,
            skipped=0, train=shards,
        ).write(folder)  # fmt: skip
        print(f"{'step':>14}{'seconds to its batch of 512 x 1024, of 1,000,000,000 tokens':>64}")
        for step in STEPS:
            print(f"{step:>14,}{statistics.median(seek(folder, step) for _ in range(5)):>64.3f}")


def seek(folder: Path, step: int) -> float:
    began = time.perf_counter()
    tokens = TokenSet.open(folder)
    samples = tokens.train.samples(LENGTH)
    ids = order.batch(order.Shuffled(0, samples), sequences=SEQUENCES, step=step).ids
    tokens.train.read(ids, LENGTH)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
