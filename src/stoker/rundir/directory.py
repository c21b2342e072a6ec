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
from typing import Any, Literal, TextIO, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict

from stoker.rundir.checkpoint import Manifest, read_manifest
from stoker.rundir.files import NotRegular, append, open_regular, open_writable, read_regular, write_atomic
from stoker.rundir.records import (
    RECORD_BYTES,
    Count,
    Record,
    Seconds,
    is_event,
    is_metrics,
    parse_spec,
    read_records,
    records_backwards,
    typed,
)
from stoker.spec import contract
from stoker.spec.errors import UserError
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
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # what a file system says that has none


@dataclass(frozen=True, kw_only=True, slots=True)
class DataRef:
    """Which prepared token set a run trains on."""

    shards: str
    """Absolute folder of the token set."""
    key: str
    """The token set's content address; a folder with another key is not this run's data."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OriginRef:
    """Another model that a run begins with or learns from."""

    path: str
    """Absolute folder: a run's, or one that transformers wrote."""
    step: Count | None
    """Of the run's checkpoint."""
    key: str
    """What the weights are known by: others in their place are not this run's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlaceRef:
    """Where a run lives that is not here: its directory is on a volume of a cluster."""

    kind: Literal["kubernetes"]
    context: str | None
    namespace: str
    job: str
    run: str
    volume: str
    image: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Exit:
    """How the last launch of a run ended."""

    state: Literal["done", "paused", "failed"]
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
    """A checkpoint whose manifest is there: it is whole."""

    step: int
    path: Path
    manifest: Manifest

    @property
    def key(self) -> str:
        """What its weights are known by."""
        return self.manifest.key


class RunDir:
    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.skipped: Counter[str] = Counter()
        """Records that were no records, by the name of their file, as far as this object has read them."""

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
    def place(self) -> str:
        """Where the run is kept, in words."""
        return str(self.path)

    def log(self, rank: int) -> Path:
        return self.logs / f"rank-{rank}.log"

    def exists(self) -> bool:
        return (self.path / contract.SPEC_FILE).is_file()

    def check_present(self) -> None:
        """Of a run that is being written: what is written after its folder was moved would be a second, torn run."""
        if not self.exists():
            raise UserError(
                f"the folder of run '{self.name}' is gone: {self.path} was moved or deleted while the run was active",
                remedy="Move it back and run the same command again, or resume it where it is: stoker launch FOLDER",
            )

    def fetch(self, saved: Saved) -> None:
        """Have the files of a checkpoint here. On a disk they are."""

    def create(self, spec: AnySpec, data: DataRef | None) -> None:
        """Lay the directory out. spec.yaml comes last: a directory that has it is whole."""
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
            return parse_spec(read_regular(file, max_bytes=RECORD_BYTES))
        except (OSError, ValueError) as e:
            raise _damaged(file) from e

    def spec(self) -> RunSpec:
        """Of a run that trains one of our models."""
        spec = self.any_spec()
        if isinstance(spec, ScriptSpec):
            raise UserError(
                f"run '{self.name}' runs a script of its own, and Stoker knows nothing of its model and data",
                remedy="This verb is for runs with a model:",
            )
        return spec

    def data(self) -> DataRef:
        return self._whole(DataRef, contract.DATA_FILE)

    def write_origins(self, origins: Mapping[str, OriginRef]) -> None:
        write_json(self.path / contract.ORIGINS_FILE, {name: asdict(ref) for name, ref in origins.items()})

    def origins(self) -> dict[str, OriginRef]:
        """`init` and `teacher`, as far as it has them."""
        if not os.path.lexists(self.path / contract.ORIGINS_FILE):
            return {}
        return self._whole(dict[str, OriginRef], contract.ORIGINS_FILE)

    def place_ref(self) -> PlaceRef | None:
        """None when the run lives here."""
        if not os.path.lexists(self.path / contract.PLACE_FILE):
            return None
        return self._whole(PlaceRef, contract.PLACE_FILE)

    def write_place(self, place: PlaceRef) -> None:
        write_json(self.path / contract.PLACE_FILE, asdict(place))

    def seen(self) -> Record | None:
        """What was last read of a run that lives elsewhere, and when."""
        try:
            return typed(_Seen, read_regular(self.path / contract.SEEN_FILE, max_bytes=RECORD_BYTES)).model_dump()
        except (OSError, ValueError):
            return None  # it is a copy: the run itself is asked again

    def write_seen(self, record: Record) -> None:
        write_json(self.path / contract.SEEN_FILE, record)

    def forget_ending(self) -> None:
        """It goes on elsewhere: how far it had come stays known, how it ended counts no more."""
        if seen := self.seen():
            self.write_seen({"asked": 0.0, "view": seen["view"] | {"state": "interrupted", "reason": "", "remedy": ""}})

    def held(self, name: str) -> Path:
        """Where the checkpoint of another run is held under that name, in the form of a run."""
        return self.path / contract.HELD_DIR / name

    def add_metrics(self, record: Record) -> None:
        append_line(self.path / contract.METRICS_FILE, record)

    def add_event(self, kind: str, *, rank: int | None = None, **facts: object) -> None:
        head = {"time": time.time(), "kind": kind, "rank": rank, "host": socket.gethostname()}
        append_line(self.path / contract.EVENTS_FILE, head | facts)

    def metrics(self) -> list[Record]:
        """One record a step, in order: a step trained again after a restart counts as it was trained last."""
        by_step: dict[int, Record] = {}
        for record in read_records(self.path / contract.METRICS_FILE, is_metrics, self.skipped):
            by_step[record["step"]] = by_step.get(record["step"], {}) | record
        return [by_step[step] for step in sorted(by_step)]

    def metrics_backwards(self, *marks: bytes) -> Iterator[Record]:
        """As they were written, newest first; with marks, those of the lines that hold one of them."""
        return records_backwards(self.path / contract.METRICS_FILE, is_metrics, *marks, skipped=self.skipped)

    def events(self) -> list[Record]:
        return list(read_records(self.path / contract.EVENTS_FILE, is_event, self.skipped))

    def events_backwards(self, *marks: bytes) -> Iterator[Record]:
        return records_backwards(self.path / contract.EVENTS_FILE, is_event, *marks, skipped=self.skipped)

    def exit(self) -> Exit | None:
        """None while it has not ended, and when exit.json is not what a run writes: that counts as skipped."""
        file = self.path / contract.EXIT_FILE
        self.skipped.pop(file.name, None)
        try:
            look_anew(self.path)  # a worker of another node may have written it
            return typed(Exit, read_regular(file, max_bytes=RECORD_BYTES))
        except FileNotFoundError:
            return None
        except (NotRegular, ValueError):
            self.skipped[file.name] = 1
            return None

    def write_exit(self, exit: Exit) -> None:
        write_json(self.path / contract.EXIT_FILE, asdict(exit))

    def clear_exit(self) -> None:
        file = self.path / contract.EXIT_FILE
        try:
            file.unlink(missing_ok=True)
        except OSError as e:
            raise NotRegular(file) if file.is_dir() else e from e

    def saved(self) -> list[Saved]:
        """The whole checkpoints, oldest first. A live run may have pruned all that were listed: it has a newer one."""
        while True:
            listed = sorted(self.checkpoints.glob(contract.CHECKPOINT_GLOB))
            found = []
            for path in (path for path in listed if not path.is_symlink()):
                with suppress(OSError, ValueError):
                    look_anew(path)
                    manifest = read_manifest(path)
                    found.append(Saved(step=int(path.name.removeprefix("step-")), path=path, manifest=manifest))
            if found or listed == sorted(self.checkpoints.glob(contract.CHECKPOINT_GLOB)):
                return found

    def next_attempt(self) -> int:
        """One more than the highest that wrote a ledger; one that died before it did nothing."""
        names = (re.match(r"attempt-([0-9]{1,9})-rank-", path.name) for path in self.ledger.glob("attempt-*"))
        return 1 + max((int(name[1]) for name in names if name), default=0)

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:09d}"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run for writing. The kernel lets go of it when the holder dies, however it dies."""
        path = self.path / contract.LOCK_FILE
        self._check_folders()
        try:
            file = open(open_writable(path, os.O_RDWR | os.O_APPEND), "a+")  # noqa: SIM115 (closed by the with below)
        except PermissionError as e:
            raise UserError(f"cannot write {path}: {e.strerror}", remedy="Choose another folder with --runs DIR") from e
        with file:
            if not _take(file):
                raise Held(self.name, self.holder())
            file.seek(0)
            file.truncate()
            file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "time": time.time()}))
            file.flush()
            yield

    def _check_folders(self) -> None:
        """A folder of a downloaded run may be a link: what the run writes would land anywhere."""
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
        """Who holds the lock now (pid, host, time), or None."""
        path = self.path / contract.LOCK_FILE
        self.skipped.pop(path.name, None)
        try:
            with open_regular(path) as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    return None
                except BlockingIOError:
                    return asdict(_holder(file.read(HOLDER_BYTES)))
        except NotRegular:
            self.skipped[path.name] = 1  # nobody can hold it
            return None
        except OSError as e:
            if e.errno in (errno.ENOENT, *NO_LOCKS):
                return None
            raise

    def _whole(self, kind: type[T], name: str) -> T:
        """A file that is one record."""
        try:
            return typed(kind, read_regular(self.path / name, max_bytes=RECORD_BYTES))
        except (OSError, ValueError) as e:
            raise _damaged(self.path / name) from e


class Held(UserError):
    """Somebody else writes the run."""

    def __init__(self, name: str, holder: Record | None, *, hint: str = "") -> None:
        who = f"process {holder['pid']} on {holder['host']}" if holder else "another process"
        super().__init__(
            f"run '{name}' is being written by {who}",
            remedy=f"Wait for it, stop it with: stoker stop {name}, or start another with --new{hint}",
        )


class _View(BaseModel):
    """What is asked of a run's view by those who know no more of it; the rest is kept as it is."""

    model_config = ConfigDict(extra="allow", strict=True)

    state: str = ""
    step: Count = 0
    reason: str = ""
    remedy: str = ""


class _Seen(BaseModel):
    asked: Seconds
    view: _View
    ended: bool = False
    unread: str = ""


def _holder(data: bytes) -> Holder:
    """The lock is taken a moment before it is written."""
    try:
        return typed(Holder, data)
    except ValueError:
        return Holder()


def _damaged(path: Path) -> UserError:
    return UserError(f"{path} is missing or damaged", remedy="Restore it, or start another run with --new")


def _take(file: TextIO) -> bool:
    """Tries for a second: a reader that asks who holds the lock holds it itself for a moment."""
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


def look_anew(folder: Path) -> None:
    """Have a network file system ask the server what is in a folder, instead of remembering what was not.

    NFS takes a name that it did not find for missing up to a minute longer, unless the folder itself is opened.
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
