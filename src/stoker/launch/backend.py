"""The Backend seam: a place where runs live."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stoker.rundir import RunDir
from stoker.spec.run import RunSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What a place has."""

    cores: int
    gpus: tuple[str, ...]
    """Names of the GPUs that a worker can use, one each."""
    torch: str | None
    """Version of the installed torch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """What will be sent: plain data, the same for the same spec and facts."""

    run: Path
    workers: int
    device: str
    argv: tuple[str, ...]
    env: dict[str, str]
    """Added to the environment of the launcher."""


class Running(Protocol):
    """A submitted run, as its submitter sees it."""

    def poll(self) -> int | None:
        """The run's exit code, or None while it runs."""

    def stop(self) -> None:
        """Ask it to save and end; asked again, it ends at once."""


class Backend(Protocol):
    def discover(self) -> Facts:
        """Look at the place."""

    def plan(self, spec: RunSpec, facts: Facts, run: Path) -> Submission:
        """Pure."""

    def submit(self, submission: Submission) -> Running:
        """Start it."""

    def stop(self, run: RunDir) -> bool:
        """Ask a run to save and end, whoever started it. False when it does not run; idempotent."""
