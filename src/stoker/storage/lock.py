"""One writer for a run in a store.

Each writer creates the object lock/NUMBER, with the number after the last and only if it does not exist: of two
writers that try at once, only one succeeds. It renews its lock regularly; another writer may take over from a lock that
has expired by the store's clock.
"""

import json
import os
import socket
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from stoker.rundir import Record, RunHeld
from stoker.spec.bounded import parse_json
from stoker.spec.errors import UserError
from stoker.storage import layout
from stoker.storage.layout import RemoteRun
from stoker.storage.store import Store, StoreError

EXPIRES_AFTER_S = 60.0  # without a renewal
RENEW_EVERY_S = 15.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Writer:
    """The last writer of the run, and whether it still holds the lock."""

    token: str
    pid: int
    host: str
    machine: str
    started: int
    time: float
    held: bool

    def holder(self) -> Record:
        return {"pid": self.pid, "host": self.host, "time": self.time}


@dataclass(frozen=True, kw_only=True, slots=True)
class Last:
    """The last writer, as the store shows it now."""

    writer: Writer | None
    seconds: float
    """Since it last renewed the lock."""

    @property
    def token(self) -> str:
        return self.writer.token if self.writer else ""

    @property
    def alive(self) -> bool:
        return (
            self.writer is not None
            and self.writer.held
            and self.seconds < EXPIRES_AFTER_S
            and not _is_dead_here(self.writer)
        )


def last(store: Store, name: str, remote: RemoteRun) -> Last:
    if not remote.locks:
        return Last(writer=None, seconds=0.0)
    number = max(remote.locks)
    data = store.get(f"{name}/{layout.lock(number)}")
    writer = _writer(data, f"{store.url}/{name}") if data else None
    return Last(writer=writer, seconds=(remote.now - remote.locks[number].modified).total_seconds())


def _writer(data: bytes, place: str) -> Writer:
    try:
        return TypeAdapter(Writer).validate_python(parse_json(data))
    except ValueError as e:
        raise StoreError(
            f"the lock of {place} cannot be read", remedy=f"Delete {place}/{layout.LOCK} if no process writes that run"
        ) from e


def refuse_second(name: str, newest: Last) -> None:
    if newest.alive and newest.writer:
        raise RunHeld(
            name, newest.writer.holder(), hint=f"; if that machine is gone, try again in {EXPIRES_AFTER_S:.0f} s"
        )


class Lock:
    """Held by this process from `take` to `release`."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self._number = 0
        self._renewed = 0.0
        self._writer = Writer(
            token=uuid.uuid4().hex,
            pid=os.getpid(),
            host=socket.gethostname(),
            machine=_machine(),
            started=_started(os.getpid()),
            time=time.time(),
            held=True,
        )

    @property
    def token(self) -> str:
        return self._writer.token

    def take(self, remote: RemoteRun) -> None:
        """Takes over from the last writer in `remote`, which has ended."""
        self._number = max(remote.locks, default=0) + 1
        if not self._store.put_if_absent(self._key, self._data()) and not self._is_ours():
            newest = last(self._store, self._name, layout.look(self._store, self._name))
            refuse_second(self._name, newest)
            raise UserError(f"run '{self._name}' was just taken by another command", remedy="Try again in a minute")
        self._renewed = time.monotonic()
        self._store.delete(f"{self._name}/{layout.lock(number)}" for number in remote.locks)

    def renew(self) -> bool:
        """Renews the lock when it is due. False if another writer has taken the run over."""
        if time.monotonic() - self._renewed < RENEW_EVERY_S:
            return True
        began = time.monotonic()
        numbers = layout.look_at_locks(self._store, self._name)
        if max(numbers, default=0) > self._number:
            return False
        self._store.put(self._key, self._data())
        self._renewed = began
        return True

    def check(self) -> None:
        """Raises a StoreError if the lock may have expired."""
        if time.monotonic() - self._renewed > EXPIRES_AFTER_S - RENEW_EVERY_S:
            raise StoreError(f"{self._store.url} has not answered for a while", remedy="")

    def release(self) -> None:
        self._writer = Writer(**asdict(self._writer) | {"held": False})
        self._store.put(self._key, self._data())

    @property
    def _key(self) -> str:
        return f"{self._name}/{layout.lock(self._number)}"

    def _data(self) -> bytes:
        return json.dumps(asdict(self._writer)).encode()

    def _is_ours(self) -> bool:
        """The store's client repeats a put whose response was lost; the object that exists may then be our own."""
        data = self._store.get(self._key)
        return data is not None and _writer(data, f"{self._store.url}/{self._name}").token == self.token


def _is_dead_here(writer: Writer) -> bool:
    """Whether the writer was a process of this machine and has ended: no need to wait until its lock expires."""
    return writer.machine == _machine() and _started(writer.pid) != writer.started


def _machine() -> str:
    """This boot and this pid namespace: a pid is meaningless outside them."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return uuid.uuid4().hex


def _started(pid: int) -> int:
    """When a process started, in kernel ticks; 0 if it does not exist."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    fields = stat.rpartition(")")[2].split()
    return 0 if fields[0] == "Z" else int(fields[19])
