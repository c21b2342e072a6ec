"""Compares the training loop with the Hugging Face Trainer: same model, data and batch, on the same cores or GPU.

Both run real trainings in their own processes, and take turns. A turn gives one speed, a pair of turns one ratio; the
table shows medians.

    python bench/train.py [--case cpu|gpu|llama] [--pairs 5] [--turn 20] [--only fp32|bf16|defaults]
"""

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contest import Contestant, random_tokens, start, start_stoker


@dataclass(frozen=True)
class Case:
    shape: dict[str, Any]
    vocab: int
    sequences: int
    length: int
    overrides: tuple[str, ...]
    arguments: dict[str, Any]

    def speed(self, times: list[float]) -> float:
        """Tokens per second."""
        return (len(times) - 1) * self.sequences * self.length / (times[-1] - times[0])


CASES = {
    "cpu": Case({"layers": 6, "heads": 6, "width": 384}, 8000, 16, 256, ("on.device=cpu",), {"use_cpu": True}),
    "llama": Case(
        {"family": "llama", "layers": 6, "heads": 6, "kv_heads": 2, "width": 384, "hidden": 1024},
        *(8000, 16, 256, ("on.device=cpu",), {"use_cpu": True}),
    ),
    "gpu": Case({"layers": 12, "heads": 12, "width": 768, "vocab": 50304}, 50257, 32, 1024, ("on.device=cuda",), {}),
}
SETTINGS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "fp32": (["precision=fp32", "compile=true"], {"torch_compile": True}),
    "bf16": (["precision=bf16", "compile=true"], {"torch_compile": True, "bf16": True}),
    "defaults": ([], {}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, default="cpu")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--turn", type=float, default=20, help="seconds")
    parser.add_argument("--only", choices=SETTINGS, action="append")
    args = parser.parse_args()
    case = CASES[args.case]
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        tokens = random_tokens(work / "tokens", case.vocab)
        print(f"{'setting':<10}{'stoker tok/s':>14}{'HF tok/s':>12}{'ratio':>8}   ratios of the pairs")
        for name in args.only or SETTINGS:
            speeds = compare(name, case, tokens, work, pairs=args.pairs, turn=args.turn)
            ours, theirs = (statistics.median(column) for column in zip(*speeds, strict=True))
            ratios = [a / b for a, b in speeds]
            shown = " ".join(f"{r:.3f}" for r in ratios)
            print(f"{name:<10}{ours:>14,.0f}{theirs:>12,.0f}{statistics.median(ratios):>8.3f}   {shown}", flush=True)


def compare(name: str, case: Case, tokens: Path, work: Path, *, pairs: int, turn: float) -> list[list[float]]:
    contestants = [_stoker(name, case, tokens, work), _hugging_face(name, case, tokens, work)]
    try:
        for contestant in contestants:
            contestant.warm_up()
        return [[case.speed(side.turn(seconds=turn, steps=3)) for side in contestants] for _ in range(pairs)]
    finally:
        for contestant in contestants:
            contestant.end()


def _stoker(name: str, case: Case, tokens: Path, work: Path) -> Contestant:
    overrides = [f"model.{key}={value}" for key, value in case.shape.items()]
    overrides += [f"model.context={case.length}", f"batch.length={case.length}", f"batch.sequences={case.sequences}"]
    overrides += [f"data={tokens}", "checkpoint.every=100000", *case.overrides, *SETTINGS[name][0]]
    return start_stoker(name, overrides, work)


def _hugging_face(name: str, case: Case, tokens: Path, work: Path) -> Contestant:
    times = work / f"hf-{name}.jsonl"
    settings: dict[str, object] = {
        "tokens": str(tokens),
        "out": str(work / "hf"),
        "times": str(times),
        "shape": case.shape,
    }
    settings |= {"length": case.length, "sequences": case.sequences, "arguments": case.arguments | SETTINGS[name][1]}
    command = [sys.executable, str(Path(__file__).with_name("hf_trainer.py")), json.dumps(settings)]
    return start("Hugging Face", command, times=times, log=work / f"hf-{name}.log")


if __name__ == "__main__":
    main()
