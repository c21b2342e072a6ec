"""Measures the benefit of a teacher: the same student for the same steps, alone and distilled, over several seeds.

The corpus is Python's standard library, as in `make demo`. The result is the loss on the same held-out text. The gain
must be larger than the variation between seeds.

    python bench/distill.py [--seeds 3] [--steps 300] [--teacher-steps 800]
"""

import argparse
import json
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

COMMON = [
    "data.tokenizer.train=2048", "batch.sequences=16", "batch.length=128", "model.context=128", "model.heads=4",
    "optim.lr=1e-3", "eval.every=0", "eval.sequences=256", "checkpoint.every=100000", "log.tensorboard=false",
    "on.workers=1", "compile=false",
]  # fmt: skip
TEACHER = ["model.layers=4", "model.width=256"]
STUDENT = ["model.layers=2", "model.width=64"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--teacher-steps", type=int, default=800)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        runs = Path(name)
        teacher_loss = held_out_loss(runs, "teacher", [*TEACHER, f"until.steps={args.teacher_steps}"])
        print(f"the teacher's held-out loss after {args.teacher_steps} steps: {teacher_loss:.4f}", flush=True)
        alone, taught = gains(runs, seeds=args.seeds, steps=args.steps)
    print(f"{'seed':<6}{'alone':>9}{'taught':>9}{'gain':>9}")
    for seed, (plain, distilled) in enumerate(zip(alone, taught, strict=True)):
        print(f"{seed:<6}{plain:>9.4f}{distilled:>9.4f}{plain - distilled:>9.4f}")
    gain = statistics.mean(alone) - statistics.mean(taught)
    print(f"mean gain {gain:.4f} nats; the seeds alone spread by {spread(alone):.4f} (taught {spread(taught):.4f})")


def gains(runs: Path, *, seeds: int, steps: int, how: Sequence[str] = ()) -> tuple[list[float], list[float]]:
    """Held-out losses of the student alone and distilled, per seed; `how` has additional overrides for distillation."""
    alone, taught = [], []
    for seed in range(seeds):
        overrides = [*STUDENT, f"until.steps={steps}", f"seed={seed}"]
        alone.append(held_out_loss(runs, f"alone-{seed}", overrides))
        taught.append(held_out_loss(runs, f"taught-{seed}", [*overrides, "objective.teacher=teacher", *how]))
    return alone, taught


def spread(losses: list[float]) -> float:
    return max(losses) - min(losses)


def held_out_loss(runs: Path, name: str, overrides: list[str]) -> float:
    corpus = f"data.path={sysconfig.get_path('stdlib')}/*.py"
    command = [
        sys.executable,
        "-m",
        "stoker",
        "train",
        f"name={name}",
        corpus,
        *COMMON,
        *overrides,
        "--runs",
        str(runs),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    lines = (runs / name / "metrics.jsonl").read_text().splitlines()
    loss: float = json.loads(lines[-1])["val_loss"]
    return loss


if __name__ == "__main__":
    main()
