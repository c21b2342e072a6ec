"""What saving costs: a run that saves every 50 steps against one that does not, in turns of 50 steps.

python bench/checkpoint.py [--pairs 5]
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from contest import Contestant, random_tokens, start_stoker

EVERY = 50
WORDS = [
    "model.layers=6", "model.heads=6", "model.width=384", "model.context=256",
    "batch.length=256", "batch.sequences=16", "on.device=cpu",
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        words = [*WORDS, f"data={random_tokens(work / 'tokens', 8000)}"]
        saving = start_stoker("saving", [*words, f"checkpoint.every={EVERY}"], work)
        plain = start_stoker("plain", [*words, "checkpoint.every=100000"], work)
        try:
            saving.warm_up()
            plain.warm_up()
            turns = [(_seconds(saving), _seconds(plain)) for _ in range(args.pairs)]
        finally:
            saving.end()
            plain.end()
    ratios = [a / b for a, b in turns]
    print(f"{'seconds of 50 steps, one save':>30}{'without':>10}{'ratio':>8}   ratios of the pairs")
    medians = [statistics.median(column) for column in zip(*turns, strict=True)]
    shown = " ".join(f"{r:.3f}" for r in ratios)
    print(f"{medians[0]:>30.2f}{medians[1]:>10.2f}{statistics.median(ratios):>8.3f}   {shown}")


def _seconds(one: Contestant) -> float:
    times = one.turn(seconds=0, steps=EVERY)
    return times[EVERY] - times[0]


if __name__ == "__main__":
    main()
