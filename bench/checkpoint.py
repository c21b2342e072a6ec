"""Measures the cost of saving: 50 steps with one save against 50 steps without.

Two trainings that save every 100 steps, one of them 50 steps ahead, take turns of 5 steps, so that both have the same
noise. While one of them saves, the other does not, and 50 steps later it is the other way round. The two ratios form a
pair, in which a constant difference in speed between the two processes cancels out.

    python bench/checkpoint.py [--pairs 5] [--layers 6]
"""

import argparse
import itertools
import math
import statistics
import tempfile
from pathlib import Path

from contest import Contestant, random_tokens, start_stoker

WINDOW = 50
TURN = 5
FIRST = 73  # a turn ends three steps after a save starts, when it has finished; windows end halfway between saves
OVERRIDES = [
    "model.heads=6", "model.width=384", "model.context=256", "batch.length=256", "batch.sequences=16", "on.device=cpu",
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--layers", type=int, default=6)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        overrides = [*OVERRIDES, f"data={random_tokens(work / 'tokens', 8000)}"]
        overrides += [f"model.layers={args.layers}", f"checkpoint.every={2 * WINDOW}"]
        contestants = [start_stoker(name, overrides, work) for name in ("behind", "ahead")]
        try:
            behind, ahead = _take_turns(contestants, windows=2 * args.pairs)
        finally:
            for contestant in contestants:
                contestant.end()
    windows = [(b, a) if number % 2 == 0 else (a, b) for number, (b, a) in enumerate(zip(behind, ahead, strict=True))]
    ratios = [saving / plain for saving, plain in windows]
    pairs = [math.sqrt(first * second) for first, second in zip(ratios[::2], ratios[1::2], strict=True)]
    saving, plain = (statistics.median(column) for column in zip(*windows, strict=True))
    print(f"{'seconds of 50 steps, one save':>30}{'without':>10}{'ratio':>8}   ratios of the pairs")
    shown = " ".join(f"{r:.3f}" for r in pairs)
    print(f"{saving:>30.2f}{plain:>10.2f}{statistics.median(pairs):>8.3f}   {shown}")


def _take_turns(contestants: list[Contestant], *, windows: int) -> list[list[float]]:
    """Return the running seconds of each contestant in each window. The first has a save in its first window."""
    starts = [FIRST, FIRST + WINDOW]
    awake: list[list[tuple[float, float]]] = [[] for _ in contestants]
    order = list(zip(awake, contestants, starts, strict=True))
    for done in range(0, windows * WINDOW + 1, TURN):
        for turns, contestant, start in order:
            turns.append(contestant.reach(start + done))
        order.reverse()
    seconds = []
    for turns, contestant, start in zip(awake, contestants, starts, strict=True):
        times = contestant.steps()
        borders = [times[start + number * WINDOW - 1] for number in range(windows + 1)]
        seconds.append([_overlap(turns, a, b) for a, b in itertools.pairwise(borders)])
    return seconds


def _overlap(turns: list[tuple[float, float]], start: float, end: float) -> float:
    return sum(max(0.0, min(end, to) - max(start, since)) for since, to in turns)


if __name__ == "__main__":
    main()
