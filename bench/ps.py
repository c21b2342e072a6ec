"""Measures `stoker ps` over 200 runs with realistic files, against an empty Python program.

python bench/ps.py
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from medians import print_medians

from stoker.rundir import DataRef, Exit, RunDir
from stoker.rundir.state import RunState
from stoker.spec.data import Data
from stoker.spec.run import RunSpec, Until

RUNS, LINES, CHECKPOINTS, TURNS = 200, 2000, 150, 15


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        runs = Path(name)
        for number in range(RUNS):
            make(runs, number)
        size = sum(path.stat().st_size for path in runs.rglob("*") if path.is_file())
        print(f"{RUNS} runs, {LINES:,} lines of metrics each, {size / 2**20:.0f} MiB in all")
        listing = [sys.executable, "-m", "stoker", "ps", "--runs", str(runs)]
        output = subprocess.run(listing, check=True, capture_output=True, text=True).stdout
        assert output.count("\n") == RUNS + 1, output
        commands = {"stoker ps": listing, "python -c ''": [sys.executable, "-c", ""]}
        print_medians(commands, turns=TURNS)


def make(runs: Path, number: int) -> None:
    """A run with the records of a real training: some checkpoints; every second run is done."""
    run = RunDir(runs / f"run-{number:03d}")
    spec = RunSpec(name=run.name, data=Data(path="/data/books"), until=Until(steps=10 * LINES))
    run.create(spec, DataRef(shards="/data/tokens", key="k"))
    began = time.time() - 86400 - number
    head = {"time": began, "rank": 0, "host": "node-0"}
    started = {"kind": "started", "attempt": 1, "world": 8, "chip": "NVIDIA H200", "steps": 10 * LINES}
    events = [
        head | {"kind": "world", "attempt": 1, "workers": 8, "restart": 0},
        head | started | {"tokens_per_step": 524288, "parameters": 124439808, "warmup": 400, "horizon": 10 * LINES},
        *(head | {"kind": "checkpoint", "step": 100 * i, "seconds": 1.234} for i in range(1, CHECKPOINTS + 1)),
    ]
    run_metrics = [metrics(began, 10 * i) for i in range(1, LINES + 1)]
    (run.path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in run_metrics))
    (run.path / "lock").touch()
    for rank in range(2):
        run.log(rank).write_text("2026-11-15T04:57:26.123Z a line that a worker prints\n" * 500)
    if number % 2:
        run.write_exit(Exit(state=RunState.DONE, code=0, step=10 * LINES, reason="all steps are done"))


def metrics(began: float, step: int) -> dict[str, object]:
    record: dict[str, object] = {
        "step": step, "time": began + step, "loss": 10 / (1 + step / 100), "lr": 0.0006 * (1 - step / 30000),
        "grad_norm": 0.4371236824989319, "tokens": step * 524288, "tokens_per_second": 465152.1834716, "skipped": 0,
        "samples_per_second": 454.250179, "mfu": 0.4512343, "memory_gib": 29.13, "data_wait": 0.00123, "world": 8,
    }  # fmt: skip
    return record | ({"val_loss": 3.3} if step % 100 == 0 else {})


if __name__ == "__main__":
    main()
