"""Runs of the cluster that wait at chosen steps until they are let go, watched on the volume."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from lab.places import VOLUMES
from stoker.rundir import RunDir
from tests.written import events_of

PATIENCE = 300.0
HOLD = """
import os
import time
from pathlib import Path

def hold(record):
    go = Path(os.environ["STOKER_RUN_DIR"], f"go-{{record['step']}}")
    while record["step"] in {steps} and not go.exists():
        time.sleep(0.05)
"""
WORD = "callbacks=[holding:hold]"


def write_hold(folder: Path, steps: Sequence[int]) -> None:
    (folder / "holding.py").write_text(HOLD.format(steps=tuple(steps)))


def let_go(run: RunDir, step: int) -> None:
    (run.path / f"go-{step}").touch()


def on_the_volume(run: RunDir) -> RunDir:
    """The volume is a folder of this machine."""
    found: list[Path] = []
    end = time.monotonic() + PATIENCE
    while not found:
        assert time.monotonic() < end
        found = list(VOLUMES.glob(f"*/runs/{run.name}"))
        time.sleep(0.1)
    return RunDir(found[0])


def last_step(run: RunDir) -> int:
    return max((record["step"] for record in run.metrics()), default=0)


def losses(run: RunDir) -> list[float]:
    return [record["loss"] for record in run.metrics()]


def until(condition: Callable[[], object], run: RunDir) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, events_of(run)
        time.sleep(0.2)
