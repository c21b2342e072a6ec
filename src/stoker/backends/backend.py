"""The Backend seam: a place where runs execute.

A backend is a folder beside this file. Its `backend.py` has the functions of `BackendModule`; what they return has the
methods of `Backend`. Nothing else of Stoker asks where a run executes: it asks the backend.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Protocol

from stoker.rundir import Exit, Record, RunDir
from stoker.rundir.events import Event
from stoker.rundir.logs import LogLine
from stoker.rundir.state import RunState
from stoker.rundir.view import RunRow, RunView
from stoker.spec.errors import UserError
from stoker.spec.model import Model
from stoker.spec.on import On
from stoker.spec.run import AnySpec

if TYPE_CHECKING:  # only their types are named here, and most commands need none of them
    from stoker.backends.local.environment import WorkerEnvironment
    from stoker.backends.local.top import Use
    from stoker.backends.transfer.frames import Pipe
    from stoker.backends.transfer.meter import TransferProgress
    from stoker.diagnose.facts import DiagnosisFacts

Message = Callable[[str], None]
"""Called with a line to show while a command waits."""
Rows = list[tuple[str, str]]
"""Labels and values, as a command prints them."""


class Unavailable(UserError):
    """The place cannot be reached, or does not accept the user's credentials."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What a place has."""

    cores: int
    gpus: tuple[str, ...]
    """Names of the GPUs that workers can use, one entry per GPU."""
    torch: str | None
    """Version of the installed torch."""
    memory: int | None = None
    """Bytes that all workers together may use; None if unknown."""
    gpu_memory: int | None = None
    """Bytes of the smallest of these GPUs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """What will be submitted: plain data, the same for the same spec and facts."""

    run: Path
    workers: int
    device: str
    argv: tuple[str, ...]
    env: dict[str, str]
    """Added to the environment of the launcher."""
    secrets: dict[str, str]
    """Name -> source of the value. The values are read when the run is submitted, and are not stored here."""
    objects: tuple[dict[str, Any], ...] = ()
    """For a cluster: the objects to create; the object that owns the others is the last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """What the workers of a run use now."""

    state: RunState
    step: int
    steps: int | None
    tokens_per_second: float | None = None
    workers: "list[Use]"
    unread: dict[str, str] = field(default_factory=dict)
    """Pods that did not answer -> the reason."""
    pods: int = 0
    """Pods that are up."""
    asked: int = 0
    """Pods that were asked: a sample where there are very many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaled:
    was: str
    nodes: str
    how: Literal["unchanged", "live", "resubmitted"]
    """`unchanged`: it already had this number; `resubmitted`: it saved, and resumes in a new job."""
    warnings: list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Details:
    """What a backend adds to the status of a run."""

    rows: Rows = field(default_factory=list)
    table: Table | None = None


class Running(Protocol):
    """A submitted run, as its submitter sees it."""

    @property
    def where(self) -> str:
        """As text, such as: in the background."""

    def poll(self) -> int | None:
        """The run's exit code, or None while it runs."""

    def stop(self) -> None:
        """Ask it to save and stop. A second call stops it at once."""

    def has_started(self, run: RunDir) -> bool:
        """Whether it holds the run's lock, so that nothing else can start the run."""

    def record(self) -> Record:
        """What `stoker launch --json` prints about it."""


class Listener(Protocol):
    """Receives the progress of a launch; every method may do nothing."""

    def building(self, phase: str, done: int, total: int) -> None:
        """An image is being built or pushed."""

    def uploading(self, progress: "TransferProgress") -> None: ...

    def committed(self) -> None:
        """Called before the first object is created: after that, an interrupted launch must report what exists."""


class Files(Protocol):
    """The files of a run that is not on this machine; transfer.client connects to them."""

    root: str
    """The remote folder that contains all paths."""

    def connect(self, argv: Sequence[str]) -> "Pipe":
        """Starts `python3 -m …` on the remote side. Each call may use another pod. Raises PeerLost."""

    def path(self, path: str) -> str:
        """The full path: a path that starts with / is relative to the volume, any other to the run directory."""

    def fetch(
        self, url: str, into: str, options: Sequence[str], progress: "Callable[[TransferProgress], None]"
    ) -> "TransferProgress":
        """Downloads from a bucket or the web to a remote path, without passing through this machine."""

    def shell(
        self,
        argv: Sequence[str],
        *,
        stdin: BinaryIO | None,
        stdout: BinaryIO,
        stderr: BinaryIO | None,
        terminal: Callable[[], tuple[int, int]] | None,
    ) -> int:
        """Runs a command in the run directory and returns its exit code. `terminal`: returns the terminal's size."""

    def close(self) -> None:
        """Deletes what was created to reach the files."""


class Backend(Protocol):
    # To launch a run

    def discover(self) -> Facts:
        """Inspects the place. Raises Unavailable."""

    def assumed(self) -> Facts:
        """The facts for a plan when the place cannot be inspected."""

    def plan(self, spec: AnySpec, facts: Facts, run: Path, *, teacher: Model | None = None) -> Submission:
        """Pure. `teacher` is the shape of the model that the run learns from."""

    def check(self, spec: AnySpec, facts: Facts, submission: Submission) -> list[str]:
        """Warnings. Raises UserError for what is known to fail, before anything is created."""

    def describe(self, spec: AnySpec, facts: Facts, submission: Submission) -> Rows:
        """What this backend adds to the output of a plan."""

    def stage(self, submission: Submission, spec: AnySpec, facts: Facts, listener: Listener) -> Submission:
        """Transfers what the run needs: its image, its directory, its data. Returns what will be submitted."""

    def submit(self, submission: Submission, *, detached: bool) -> Running:
        """Starts the run. A detached run outlives the process that submits it."""

    # For a run that was launched

    def view(self, run: RunDir) -> RunView: ...

    def details(self, view: RunView) -> Details: ...

    def events(self, run: RunDir, *, follow: bool) -> Iterator[Event]:
        """In order; with `follow`, until the run ends."""

    def metrics(self, run: RunDir) -> list[Record]: ...

    def logs(
        self,
        run: RunDir,
        *,
        rank: int | None,
        tail: int | None,
        since: float | None,
        follow: bool,
        pause: Callable[[], bool],
    ) -> Iterator[LogLine]:
        """The logs of one rank, or of all. With `follow`, calls `pause` between reads until it returns False."""

    def facts(self, run: RunDir, *, brief: bool) -> "DiagnosisFacts":
        """What is known about a run, for `why`. `brief`: without waiting for anything slow."""

    def top(self, run: RunDir, *, every_s: float | None) -> Iterator[Usage]:
        """Yields while the run is running, and once if it is not. `every_s`: the interval between readings."""

    def environment(self, run: RunDir, rank: int) -> "WorkerEnvironment": ...

    def stop(self, run: RunDir) -> bool:
        """Asks the run to save and stop, whatever started it. False if it is not running; idempotent."""

    def wait(self, run: RunDir, *, timeout_s: float | None = None, code: int | None = None) -> Exit:
        """Waits until the run has ended, and returns how. Raises TimeoutError.

        `code`: the exit code of its supervisor, for the process that started it. It tells how a run ended that could
        not record it.
        """

    def await_stopped(self, run: RunDir, message: Message) -> None:
        """After `stop`: waits until nothing of the run is left. Raises RunFailed if that takes too long."""

    def scale(self, run: RunDir, nodes: str, *, message: Message, committed: Callable[[], None]) -> Scaled:
        """Raises UserError, with nothing changed, if it is impossible. Calls `committed` before the first change."""

    def files(self, run: RunDir, *, moving: bool = False) -> Files:
        """Raises UserError for a run on this machine. `moving`: for transfers that may take hours."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    """The result for one requirement of a place."""

    name: str
    ok: bool
    needed: bool
    """Whether no run can be trained without it."""
    detail: str
    """What the place has, or what is wrong."""
    remedy: str = ""


class BackendModule(Protocol):
    """What `backend.py` in a backend's folder defines."""

    def backend_for(self, on: On, message: Message) -> Backend:
        """The backend for the `on` section of a run file."""

    def backend_of(self, run: RunDir) -> Backend:
        """The backend that a run was launched on."""

    def rows(self, runs: list[RunDir]) -> list[RunRow]:
        """A row per run, in any order. Runs in the same cluster are read together."""
