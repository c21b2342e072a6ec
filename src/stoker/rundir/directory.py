"""The run directory, read and written in one place.

    spec.yaml  data.json  origins.json  tokenizer/  metrics.jsonl  events.jsonl  ledger/  logs/  tb/  checkpoints/
    exit.json  lock  .origins/

It is the only thing that supervisor, workers and readers share, so every read here copes with a run that is being
written, was killed at any moment, or was copied from another machine.
"""

import errno
import fcntl
import json
import math
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict

from stoker.rundir.checkpoint import CheckpointManifest, read_manifest
from stoker.rundir.events import Event, parse_event
from stoker.rundir.files import append, write_atomic
from stoker.rundir.records import (
    RECORD_BYTES,
    Count,
    Record,
    Seconds,
    parse_metrics,
    parse_spec,
    read_records,
    records_backwards,
    typed,
)
from stoker.rundir.state import RunState
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.files import NotRegularEntry, open_regular, open_writable, read_regular
from stoker.spec.run import AnySpec, RunSpec, ScriptSpec

T = TypeVar("T")
HOLDER_BYTES = 4096
WRITTEN_FOLDERS = (
    contract.LEDGER_DIR,
    contract.LOGS_DIR,
    contract.CHECKPOINTS_DIR,
    contract.TENSORBOARD_DIR,
    contract.TOKENIZER_DIR,
    contract.MEMBERS_DIR,
)
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # errors of file systems without locks


@dataclass(frozen=True, kw_only=True, slots=True)
class DataRef:
    """Which prepared token set a run trains on."""

    shards: str
    """Absolute folder of the token set."""
    key: str
    """The token set's content address; a folder with another key is not this run's data."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OriginRef:
    """Another model that a run starts from or learns from."""

    path: str
    """Absolute folder: a run's, or one that transformers wrote."""
    step: Count | None
    """Of the run's checkpoint."""
    key: str
    """Identifies the weights: other weights at that path are not this run's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Location:
    """The fields of place.json that every backend writes."""

    kind: str
    where: str = ""
    """A description, such as: on volume claim 'training' in namespace team."""

    @property
    def is_here(self) -> bool:
        """The run's files are in the run directory."""
        return self.kind == "local"


@dataclass(frozen=True, kw_only=True, slots=True)
class Exit:
    """How the last launch of a run ended."""

    state: RunState
    """Done, paused or failed."""
    code: int
    step: Count | None
    reason: str
    remedy: str = ""
    rank: Count | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """The process that writes a run."""

    pid: Count = 0
    host: str = "?"
    time: Seconds = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """A complete checkpoint: it has a manifest."""

    step: int
    path: Path
    manifest: CheckpointManifest

    @property
    def key(self) -> str:
        """Identifies its weights."""
        return self.manifest.key


class RunDir:
    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.skipped: Counter[str] = Counter()
        """Lines that were not records, by file name, as far as this object has read the files."""

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def ledger(self) -> Path:
        return self.path / contract.LEDGER_DIR

    @property
    def checkpoints(self) -> Path:
        return self.path / contract.CHECKPOINTS_DIR

    @property
    def tensorboard(self) -> Path:
        return self.path / contract.TENSORBOARD_DIR

    @property
    def tokenizer(self) -> Path:
        return self.path / contract.TOKENIZER_DIR

    @property
    def logs(self) -> Path:
        return self.path / contract.LOGS_DIR

    @property
    def shown(self) -> str:
        """Where the run is, for messages."""
        return str(self.path)

    def log(self, rank: int) -> Path:
        return self.logs / f"rank-{rank}.log"

    def exists(self) -> bool:
        return (self.path / contract.SPEC_FILE).is_file()

    def check_present(self) -> None:
        """Refuses to write to a run whose folder was moved: that would create a second, incomplete run."""
        if not self.exists():
            raise UserError(
                f"the folder of run '{self.name}' is gone: {self.path} was moved or deleted while the run was active",
                remedy="Move it back and run the same command again, or resume it where it is: stoker launch FOLDER",
            )

    def fetch(self, saved: Saved) -> None:
        """Makes the files of a checkpoint available. On a local disk they are."""

    def create(self, spec: AnySpec, data: DataRef | None) -> None:
        """Creates the directory. spec.yaml is written last: a directory that has it is complete."""
        try:
            for folder in (contract.LEDGER_DIR, contract.LOGS_DIR, contract.CHECKPOINTS_DIR):
                (self.path / folder).mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise UserError(
                f"cannot write the run directory {self.path}: {e.strerror}", remedy="Choose another with --runs DIR"
            ) from e
        if data:
            self.write_data(data)
        self.write_spec(spec)

    def write_data(self, data: DataRef) -> None:
        write_json(self.path / contract.DATA_FILE, asdict(data))

    def write_spec(self, spec: AnySpec) -> None:
        text = yaml.safe_dump(spec.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        write_atomic(self.path / contract.SPEC_FILE, text)

    def any_spec(self) -> AnySpec:
        file = self.path / contract.SPEC_FILE
        try:
            return parse_spec(read_regular(file, max_bytes=RECORD_BYTES, follow_links=False))
        except (OSError, ValueError) as e:
            raise _damaged(file) from e

    def spec(self) -> RunSpec:
        """For a run that trains one of our models."""
        spec = self.any_spec()
        if isinstance(spec, ScriptSpec):
            raise UserError(
                f"run '{self.name}' runs a script, and Stoker does not know its model and data",
                remedy="Name a run that trains one of Stoker's models; stoker ps lists the runs",
            )
        return spec

    def data(self) -> DataRef:
        return self._read_record(DataRef, contract.DATA_FILE)

    def write_origins(self, origins: Mapping[str, OriginRef]) -> None:
        write_json(self.path / contract.ORIGINS_FILE, {name: asdict(ref) for name, ref in origins.items()})

    def origins(self) -> dict[str, OriginRef]:
        """`init` and `teacher`, where the run has them."""
        if not os.path.lexists(self.path / contract.ORIGINS_FILE):
            return {}
        return self._read_record(dict[str, OriginRef], contract.ORIGINS_FILE)

    def backend(self) -> str:
        """The kind of backend that it was launched on."""
        return self.location().kind

    def location(self) -> Location:
        """Where the run is executed and its records are, by its place.json."""
        return self.place(Location) or Location(kind="local")

    def place(self, kind: type[T]) -> T | None:
        """What the backend recorded about where the run is; None for a run of this machine."""
        if not os.path.lexists(self.path / contract.PLACE_FILE):
            return None
        return self._read_record(kind, contract.PLACE_FILE)

    def write_place(self, place: Record) -> None:
        """`kind` names the backend, and `where` describes the place; the rest is the backend's own."""
        write_json(self.path / contract.PLACE_FILE, place)

    def seen(self) -> Record | None:
        """The last known view of a run in a cluster, and when it was read."""
        try:
            return typed(
                _LastSeen, read_regular(self.path / contract.SEEN_FILE, max_bytes=RECORD_BYTES, follow_links=False)
            ).model_dump()
        except (OSError, ValueError):
            return None  # it is only a cache: the run itself is read again

    def write_seen(self, record: Record) -> None:
        write_json(self.path / contract.SEEN_FILE, record)

    def forget_ending(self) -> None:
        """It was resumed: the last known step is kept, the last known ending is dropped."""
        if seen := self.seen():
            self.write_seen(
                {"asked": 0.0, "view": seen["view"] | {"state": RunState.INTERRUPTED, "reason": "", "remedy": ""}}
            )

    def origin_folder(self, name: str) -> Path:
        """The folder with a copy of another run's checkpoint, laid out as a run."""
        return self.path / contract.ORIGINS_DIR / name

    def add_metrics(self, record: Record) -> None:
        append_line(self.path / contract.METRICS_FILE, record)

    def add_event(self, event: Event, *, rank: int | None = None) -> None:
        head = {"time": time.time(), "kind": event.kind, "rank": rank, "host": event.host or socket.gethostname()}
        append_line(self.path / contract.EVENTS_FILE, head | event.fields())

    def metrics(self) -> list[Record]:
        """One record per step, in order: for a step that was trained again after a restart, the last one."""
        by_step: dict[int, Record] = {}
        for record in read_records(self.path / contract.METRICS_FILE, parse_metrics, self.skipped):
            by_step[record["step"]] = by_step.get(record["step"], {}) | record
        return [by_step[step] for step in sorted(by_step)]

    def metrics_backwards(self, *marks: bytes) -> Iterator[Record]:
        """As written, newest first; with marks, only of lines that contain one of them."""
        return records_backwards(self.path / contract.METRICS_FILE, parse_metrics, *marks, skipped=self.skipped)

    def events(self) -> list[Event]:
        return list(read_records(self.path / contract.EVENTS_FILE, parse_event, self.skipped))

    def events_backwards(self, *kinds: type[Event]) -> Iterator[Event]:
        """Newest first; with kinds, only those, and no other line is parsed."""
        marks = [f'"kind": "{kind.kind}"'.encode() for kind in kinds]
        events = records_backwards(self.path / contract.EVENTS_FILE, parse_event, *marks, skipped=self.skipped)
        return (event for event in events if not kinds or isinstance(event, kinds))

    def exit(self) -> Exit | None:
        """None while it has not ended, and when exit.json is damaged, which counts as skipped."""
        file = self.path / contract.EXIT_FILE
        self.skipped.pop(file.name, None)
        try:
            refresh_folder(self.path)  # a worker of another node may have written it
            return typed(Exit, read_regular(file, max_bytes=RECORD_BYTES, follow_links=False))
        except FileNotFoundError:
            return None
        except (NotRegularEntry, ValueError):
            self.skipped[file.name] = 1
            return None

    def write_exit(self, exit: Exit) -> None:
        write_json(self.path / contract.EXIT_FILE, asdict(exit))

    def clear_exit(self) -> None:
        file = self.path / contract.EXIT_FILE
        try:
            file.unlink(missing_ok=True)
        except OSError as e:
            if file.is_dir():
                raise NotRegularEntry(file) from e
            raise

    def saved(self) -> list[Saved]:
        """The complete checkpoints, oldest first. A live run that prunes all that were listed has a newer one."""
        while True:
            listed = sorted(self.checkpoints.glob(contract.CHECKPOINT_GLOB))
            saved = []
            for path in (path for path in listed if not path.is_symlink()):
                with suppress(OSError, ValueError):
                    refresh_folder(path)
                    manifest = read_manifest(path)
                    saved.append(Saved(step=int(path.name.removeprefix("step-")), path=path, manifest=manifest))
            if saved or listed == sorted(self.checkpoints.glob(contract.CHECKPOINT_GLOB)):
                return saved

    def next_attempt(self) -> int:
        """One more than the highest attempt with a ledger; an attempt without a ledger trained nothing."""
        names = (re.match(r"attempt-([0-9]{1,9})-rank-", path.name) for path in self.ledger.glob("attempt-*"))
        return 1 + max((int(name[1]) for name in names if name), default=0)

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:09d}"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Locks the run for writing. The kernel releases the lock when the holder dies."""
        path = self.path / contract.LOCK_FILE
        self._check_folders()
        try:
            file = open(open_writable(path, os.O_RDWR | os.O_APPEND), "a+")  # noqa: SIM115 (closed by the with below)
        except PermissionError as e:
            raise UserError(f"cannot write {path}: {e.strerror}", remedy="Choose another folder with --runs DIR") from e
        with file:
            if not _try_lock(file):
                raise RunHeld(self.name, self.holder())
            file.seek(0)
            file.truncate()
            file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "time": time.time()}))
            file.flush()
            yield

    def _check_folders(self) -> None:
        """A folder of a downloaded run may be a link: the run would write outside its own folder."""
        for name in WRITTEN_FOLDERS:
            path = self.path / name
            if path.is_symlink():
                raise UserError(
                    f"{path} is a link, and a run writes only inside its own folder",
                    remedy="Put the folder itself there; to keep runs on another disk use --runs DIR",
                )
            if name != contract.TENSORBOARD_DIR and path.exists() and not path.is_dir():  # tb only warns
                raise UserError(f"{path} is a file where a folder should be", remedy="Move it elsewhere")

    def holder(self) -> Record | None:
        """The process that holds the lock (pid, host, time), or None."""
        path = self.path / contract.LOCK_FILE
        self.skipped.pop(path.name, None)
        try:
            with open_regular(path, follow_links=False) as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    return None
                except BlockingIOError:
                    return asdict(_holder(file.read(HOLDER_BYTES)))
        except NotRegularEntry:
            self.skipped[path.name] = 1  # it cannot be locked
            return None
        except OSError as e:
            if e.errno in (errno.ENOENT, *NO_LOCKS):
                return None
            raise

    def _read_record(self, kind: type[T], name: str) -> T:
        """Reads a file that is one record."""
        try:
            return typed(kind, read_regular(self.path / name, max_bytes=RECORD_BYTES, follow_links=False))
        except (OSError, ValueError) as e:
            raise _damaged(self.path / name) from e


class RunHeld(UserError):
    """Another process writes the run."""

    def __init__(self, name: str, holder: Record | None, *, hint: str = "") -> None:
        process = "another process"
        if holder and holder["pid"]:  # the lock is taken a moment before its holder is written to it
            process = f"process {holder['pid']} on {holder['host']}"
        super().__init__(
            f"run '{name}' is being written by {process}",
            remedy=f"Wait for it, stop it with: stoker stop {name}, or start another with --new{hint}",
        )


class _SeenView(BaseModel):
    """The fields of a run's view that are used here; others are kept unchanged."""

    model_config = ConfigDict(extra="allow", strict=True)

    state: str = ""
    step: Count = 0
    reason: str = ""
    remedy: str = ""


class _LastSeen(BaseModel):
    asked: Seconds
    view: _SeenView
    ended: bool = False
    unread: str = ""


def _holder(data: bytes) -> Holder:
    """The lock is taken a moment before the holder is written to it."""
    try:
        return typed(Holder, data)
    except ValueError:
        return Holder()


def _damaged(path: Path) -> UserError:
    return UserError(f"{path} is missing or damaged", remedy="Restore it, or start another run with --new")


def _try_lock(file: TextIO) -> bool:
    """Tries for a second: a reader that checks the lock holds it for a moment."""
    for _ in range(20):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.05)
        except OSError as e:
            if e.errno not in NO_LOCKS:
                raise
            remedy = "Mount that volume with the option flock, or keep runs on one that has locks"
            raise UserError(f"{file.name} cannot be locked ({e.strerror})", remedy=remedy) from e
    return False


def refresh_folder(folder: Path) -> None:
    """Makes a network file system read a folder again, instead of remembering which names were missing.

    NFS remembers a missing name for up to a minute, unless the folder itself is opened.
    """
    os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))


def write_json(path: Path, record: Record) -> None:
    write_atomic(path, json.dumps(record, indent=1) + "\n")


def append_line(path: Path, record: Record) -> None:
    append(path, (json.dumps(_finite(record), allow_nan=False) + "\n").encode())


def _finite(value: Any) -> Any:
    """NaN and Inf are not JSON: they are written as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
