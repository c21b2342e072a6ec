"""The layout of a run in a store: how its files become objects.

    NAME/spec.yaml  data.json  tokenizer/…  exit.json         each file an object
    NAME/metrics.jsonl/OFFSET  events  ledger  logs  tb       files that grow: pieces, each named by its offset
    NAME/checkpoints/step-N/…                                 complete when it has a manifest.json, as on disk
    NAME/lock/NUMBER                                          the highest number is the current writer

A piece grows until it is full and is then never touched again: a long file is a few large objects, not many small ones.
"""

import re
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePosixPath

from pydantic import TypeAdapter, ValidationError

from stoker.spec import contract
from stoker.spec.run import Name
from stoker.storage.store import Object, Store

PIECE_BYTES = 256 << 10
LOCK = "lock"
ALWAYS = (  # needed by every reader
    contract.SPEC_FILE,
    contract.DATA_FILE,
    contract.ORIGINS_FILE,
    contract.EXIT_FILE,
    contract.METRICS_FILE,
    contract.EVENTS_FILE,
    contract.TOKENIZER_DIR,
)
GROWING_FILES = (contract.METRICS_FILE, contract.EVENTS_FILE)
GROWING_FOLDERS = (contract.LEDGER_DIR, contract.LOGS_DIR, contract.TENSORBOARD_DIR)
ROTATED = re.compile(r"\.log\.\d+")
CHECKPOINT = re.compile(r"step-[0-9]{9}")
NUMBER = re.compile(r"[0-9]{1,18}")
RUN_NAME: TypeAdapter[str] = TypeAdapter(Name)


@dataclass(kw_only=True)
class RemoteRun:
    """The content of a run in the store, from a listing."""

    now: datetime
    files: dict[str, Object] = field(default_factory=dict)
    pieces: dict[str, dict[int, Object]] = field(default_factory=dict)
    """File -> offset of the piece -> the piece, in order."""
    checkpoints: dict[int, dict[str, Object]] = field(default_factory=dict)
    """Step -> name of the file -> the file; incomplete checkpoints too."""
    locks: dict[int, Object] = field(default_factory=dict)

    @property
    def exists(self) -> bool:
        return contract.SPEC_FILE in self.files

    @property
    def complete(self) -> list[int]:
        """Steps of the complete checkpoints, oldest first."""
        return sorted(step for step, files in self.checkpoints.items() if contract.MANIFEST_FILE in files)


def is_run_name(name: str) -> bool:
    """Folders with other names are no runs. Names such as .. would lead out of the folder of the working copies."""
    try:
        RUN_NAME.validate_python(name)
    except ValidationError:
        return False
    return True


def look(store: Store, name: str) -> RemoteRun:
    listing = store.list(f"{name}/")
    remote = RemoteRun(now=listing.now)
    for key, object in listing.objects.items():
        path = key.removeprefix(f"{name}/")
        if _is_plain(path):
            _sort(remote, path, object)
    return remote


def look_at_locks(store: Store, name: str) -> dict[int, Object]:
    objects = store.list(f"{name}/{LOCK}/").objects
    return {
        int(number): object for key, object in objects.items() if NUMBER.fullmatch(number := key.rpartition("/")[2])
    }


def grows(path: str) -> bool:
    return path in GROWING_FILES or path.split("/")[0] in GROWING_FOLDERS


def is_rotated(path: str) -> bool:
    """An older part of a log: it was sent while it was the newest."""
    return ROTATED.search(path) is not None


def piece(path: str, start: int) -> str:
    return f"{path}/{start:015d}"


def lock(number: int) -> str:
    return f"{LOCK}/{number:09d}"


def checkpoint(step: int) -> str:
    return f"{contract.CHECKPOINTS_DIR}/step-{step:09d}"


def _sort(remote: RemoteRun, path: str, object: Object) -> None:
    folder, _, last = path.rpartition("/")
    parts = path.split("/")
    if folder == LOCK and NUMBER.fullmatch(last):
        remote.locks[int(last)] = object
    elif grows(folder) and NUMBER.fullmatch(last):
        remote.pieces.setdefault(folder, {})[int(last)] = object
    elif parts[0] == contract.CHECKPOINTS_DIR and len(parts) == 3 and CHECKPOINT.fullmatch(parts[1]):
        remote.checkpoints.setdefault(int(parts[1].removeprefix("step-")), {})[last] = object
    elif not grows(path):
        remote.files[path] = object


def _is_plain(path: str) -> bool:
    """Keys become local paths, so they must not lead out of the run's folder."""
    parts = PurePosixPath(path).parts
    return bool(path) and "/".join(parts) == path and ".." not in parts and not path.startswith("/")
