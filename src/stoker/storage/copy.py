"""The working copy of a run here, and what it has to do with the run in the store."""

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
class State:
    """What is known of the copy; without it, it is a copy of a run that the store does not have."""

    seen: list[str] = field(default_factory=lambda: [""])
    """Tokens of the writers whose history this is; "" for that of a run that nobody has written to the store."""
    dirty: bool = False
    """Something here may not be in the store yet: with the store's writer the same, this copy is the newer one."""
    bases: dict[str, int] = field(default_factory=dict)
    """Where in the whole of a growing file the one here begins, unless at 0."""
    inodes: dict[str, int] = field(default_factory=dict)
    """Of growing files, to know a rotated one."""
    files: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    """Tag, size and mtime_ns of other files when they were last brought or sent."""


class Copy:
    def __init__(self, run: RunDir, store: Store) -> None:
        self.run = run
        self.store = store
        self.name = run.name
        self.home = run.path.parent / HOME / run.name

    @contextmanager
    def alone(self) -> Iterator[State]:
        """Of two commands that bring the copy up to date, one waits for the other. The state is saved at the end."""
        self.home.mkdir(parents=True, exist_ok=True)
        with open(self.home / "lock", "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            state = self._read()
            before = deepcopy(state)
            try:
                yield state
            finally:
                if state != before:  # who changes nothing must not undo what a supervisor notes meanwhile
                    self.save(state)

    def save(self, state: State) -> None:
        write_json(self.home / "state.json", asdict(state))

    def claim(self) -> None:
        """The copy is of a run that was made here just now, and is to be new in the store too."""
        with self.alone() as state:
            vars(state).update(vars(State(dirty=True)))

    def key(self, path: str) -> str:
        return f"{self.name}/{path}"

    def set_aside(self) -> Path:
        """Somebody else went on with the run: the store's history counts. What was here is kept, once."""
        left = self.run.path.parent / LEFT / self.name
        shutil.rmtree(left, ignore_errors=True)
        left.parent.mkdir(exist_ok=True)
        os.rename(self.run.path, left)
        return left

    def _read(self) -> State:
        try:
            return State(**json.loads((self.home / "state.json").read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            # a copy that nothing is known of is nobody's history: it gives way to the store's
            return State(seen=[], dirty=True) if self.run.exists() else State()
