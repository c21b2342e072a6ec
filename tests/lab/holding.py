"""Runs in the cluster that are held at chosen steps until they are released, observed on the volume."""

from collections.abc import Callable, Sequence
from pathlib import Path

from lab.places import VOLUMES
from stoker.rundir import RunDir
from tests import waiting
from tests.written import events_of

HOLD = """
import os
import time
from pathlib import Path

def hold(record):
    go = Path(os.environ["STOKER_RUN_DIR"], f"go-{{record['step']}}")
    while record["step"] in {steps} and not go.exists():
        time.sleep(0.05)
"""
HOLD_OVERRIDE = "callbacks=[holding:hold]"


def write_hold(folder: Path, steps: Sequence[int]) -> None:
    (folder / "holding.py").write_text(HOLD.format(steps=tuple(steps)))


def release(run: RunDir, step: int) -> None:
    (run.path / f"go-{step}").touch()


def on_the_volume(run: RunDir) -> RunDir:
    """The directory of the run on the volume, which is a folder of this machine."""

    def directories() -> list[Path]:
        return list(VOLUMES.glob(f"*/runs/{run.name}"))

    waiting.until(directories, every_s=0.1)
    return RunDir(directories()[0])


def last_step(run: RunDir) -> int:
    return max((record["step"] for record in run.metrics()), default=0)


def losses(run: RunDir) -> list[float]:
    return [record["loss"] for record in run.metrics()]


def until(condition: Callable[[], object], run: RunDir) -> None:
    """Wait, and show the events of the run if the condition does not become true."""
    waiting.until(condition, every_s=0.2, tell=lambda: str(events_of(run)))
