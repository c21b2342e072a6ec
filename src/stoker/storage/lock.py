"""One writer for a run in a store.

Each writer adds the object lock/NUMBER, one higher than the last and only if it is not there: of two who try, one gets
it. The writer writes it anew now and then, and whoever finds it old, by the store's own clock, may add the next.
"""

import json
import os
import socket
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from stoker.rundir import Held, Record
from stoker.spec.bounded import parse_json
from stoker.spec.errors import UserError
from stoker.storage import layout
from stoker.storage.layout import Remote
from stoker.storage.store import Store, StoreError

OLD = 60.0  # seconds without a sign of life
RENEW = 15.0  # seconds between two


@dataclass(frozen=True, kw_only=True, slots=True)
class Writer:
    """Who wrote the run last, and whether he does still."""

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
    """The last writer, as the store tells now."""

    writer: Writer | None
    seconds: float
    """Since he gave a sign of life."""

    @property
    def token(self) -> str:
        return self.writer.token if self.writer else ""

    @property
    def alive(self) -> bool:
        return self.writer is not None and self.writer.held and self.seconds < OLD and not _is_dead_here(self.writer)


def last(store: Store, name: str, remote: Remote) -> Last:
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
            f"the lock of {place} cannot be read", remedy=f"Delete {place}/{layout.LOCK} if nobody writes that run"
        ) from e


def refuse_second(name: str, found: Last) -> None:
    if found.alive and found.writer:
        raise Held(name, found.writer.holder(), hint=f"; if that machine is gone, try again in {OLD:.0f} s")


class Lock:
    """Ours, from `take` to `release`."""

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

    def take(self, remote: Remote) -> None:
        """After the last writer that `remote` knows, who is not at it any more."""
        self._number = max(remote.locks, default=0) + 1
        if not self._store.put_if_absent(self._key, self._data()) and not self._is_ours():
            found = last(self._store, self._name, layout.look(self._store, self._name))
            refuse_second(self._name, found)
            raise UserError(f"run '{self._name}' was just taken by another command", remedy="Try again in a minute")
        self._renewed = time.monotonic()
        self._store.delete(f"{self._name}/{layout.lock(number)}" for number in remote.locks)

    def renew(self) -> bool:
        """A sign of life, when it is time for one. False when somebody has taken our place."""
        if time.monotonic() - self._renewed < RENEW:
            return True
        began = time.monotonic()
        numbers = layout.look_at_locks(self._store, self._name)
        if max(numbers, default=0) > self._number:
            return False
        self._store.put(self._key, self._data())
        self._renewed = began
        return True

    def check(self) -> None:
        """Nothing may be written by one who could have been taken for dead."""
        if time.monotonic() - self._renewed > OLD - RENEW:
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
        """A put whose answer was lost is tried again by the store's client, and then finds itself."""
        data = self._store.get(self._key)
        return data is not None and _writer(data, f"{self._store.url}/{self._name}").token == self.token


def _is_dead_here(writer: Writer) -> bool:
    """Known at once of a process of this machine, without waiting for it to grow old."""
    return writer.machine == _machine() and _started(writer.pid) != writer.started


def _machine() -> str:
    """This boot and this process namespace: only there does a pid mean anything."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return uuid.uuid4().hex


def _started(pid: int) -> int:
    """When a process began, in the kernel's ticks; 0 when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    fields = stat.rpartition(")")[2].split()
    return 0 if fields[0] == "Z" else int(fields[19])
