"""The Backend seam: a place where runs live."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stoker.rundir import RunDir
from stoker.spec.model import Model
from stoker.spec.run import AnySpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What a place has."""

    cores: int
    gpus: tuple[str, ...]
    """Names of the GPUs that a worker can use, one each."""
    torch: str | None
    """Version of the installed torch."""
    memory: int | None = None
    """Bytes that all workers together may use; None when nobody knows."""
    gpu_memory: int | None = None
    """Bytes of the smallest of these GPUs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """What will be sent: plain data, the same for the same spec and facts."""

    run: Path
    workers: int
    device: str
    argv: tuple[str, ...]
    env: dict[str, str]
    """Added to the environment of the launcher."""
    secrets: dict[str, str]
    """Name -> where its value comes from; the values are put into the environment when it is submitted, never here."""
    objects: tuple[dict[str, Any], ...] = ()
    """Of a run in a cluster: what will be made there, the object that owns the others last."""


class Running(Protocol):
    """A submitted run, as its submitter sees it."""

    def poll(self) -> int | None:
        """The run's exit code, or None while it runs."""

    def stop(self) -> None:
        """Ask it to save and end; asked again, it ends at once."""

    def holds(self, run: RunDir) -> bool:
        """It has begun: the run is in its hands, and in nobody else's."""


class Backend(Protocol):
    def discover(self) -> Facts:
        """Look at the place."""

    def plan(self, spec: AnySpec, facts: Facts, run: Path, *, teacher: Model | None = None) -> Submission:
        """Pure. `teacher` is the shape of the model that the run learns from."""

    def submit(self, submission: Submission, *, detached: bool) -> Running:
        """Start it. Detached it goes on when the submitter is gone."""

    def stop(self, run: RunDir) -> bool:
        """Ask a run to save and end, whoever started it. False when it does not run; idempotent."""
