"""The working copy of a run on this machine, and how it relates to the run in the store."""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path

from stoker.rundir import RunDir, write_json
from stoker.storage.store import Store

HOME = ".mirror"  # beside the runs
LEFT = ".left"


@dataclass(kw_only=True)
class CopyState:
    """The recorded state of a working copy; the default is for a run that the store does not have."""

    seen: list[str] = field(default_factory=lambda: [""])
    """Tokens of the writers whose history this copy has; "" if the run was never written to the store."""
    dirty: bool = False
    """Some files may not be uploaded yet: while the store's writer is the same, this copy is newer."""
    bases: dict[str, int] = field(default_factory=dict)
    """Offset of the local file in the whole growing file, unless 0."""
    inodes: dict[str, int] = field(default_factory=dict)
    """Of growing files, to recognize rotation."""
    files: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    """Tag, size and mtime_ns of other files when they were last downloaded or uploaded."""


class WorkingCopy:
    def __init__(self, run: RunDir, store: Store) -> None:
        self.run = run
        self.store = store
        self.name = run.name
        self.home = run.path.parent / HOME / run.name

    @contextmanager
    def locked(self) -> Iterator[CopyState]:
        """Locks the copy against other commands. The state is saved at the end."""
        self.home.mkdir(parents=True, exist_ok=True)
        with open(self.home / "lock", "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            state = self._read()
            before = deepcopy(state)
            try:
                yield state
            finally:
                if state != before:  # a reader must not overwrite what a supervisor records meanwhile
                    self.save(state)

    def save(self, state: CopyState) -> None:
        write_json(self.home / "state.json", asdict(state))

    def claim(self) -> None:
        """Marks the copy as a new run, created on this machine, that the store does not have yet."""
        with self.locked() as state:
            vars(state).update(vars(CopyState(dirty=True)))

    def key(self, path: str) -> str:
        return f"{self.name}/{path}"

    def set_aside(self) -> Path:
        """The run was resumed elsewhere: the store's history wins, and the local files are moved aside."""
        target = self.run.path.parent / LEFT / self.name
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(exist_ok=True)
        os.rename(self.run.path, target)
        return target

    def _read(self) -> CopyState:
        try:
            return CopyState(**json.loads((self.home / "state.json").read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            # a copy without a known history is replaced by the store's
            return CopyState(seen=[], dirty=True) if self.run.exists() else CopyState()
