"""The lock of a run that is kept in a store."""

import subprocess
import sys

import pytest

from stoker.spec.errors import UserError
from stoker.storage import layout
from stoker.storage.lock import EXPIRES_AFTER_S, Last, Lock, Writer, last
from stoker.storage.store import open_store

TAKE_AND_DIE = "import os, sys; from stoker.storage.lock import Lock; from stoker.storage.store import open_store; " + (
    "from stoker.storage import layout; store = open_store(sys.argv[1]); "
    "Lock(store, 'tale').take(layout.look(store, 'tale')); os._exit(1)"
)


def test_of_two_concurrent_writers_one_gets_the_lock(bucket: str) -> None:
    store = open_store(bucket)
    before = layout.look(store, "tale")
    Lock(store, "tale").take(before)
    with pytest.raises(UserError, match="is being written by"):
        Lock(store, "tale").take(before)


def test_the_lock_of_a_dead_process_of_this_machine_is_free_at_once(bucket: str) -> None:
    process = subprocess.run([sys.executable, "-c", TAKE_AND_DIE, bucket])
    assert process.returncode == 1
    store = open_store(bucket)
    remote = layout.look(store, "tale")
    newest = last(store, "tale", remote)
    assert newest.writer is not None
    assert newest.writer.held
    assert not newest.alive
    Lock(store, "tale").take(remote)


@pytest.mark.parametrize("data", [b"", b"[]", b"[" * 10_000, b'{"token": 1}', b"\xff", b"9" * 5000])
def test_an_invalid_lock_is_named_and_other_keys_are_ignored(bucket: str, data: bytes) -> None:
    store = open_store(bucket)
    store.put("tale/lock/²", b"")
    store.put("tale/lock/000000001", data)
    remote = layout.look(store, "tale")
    assert list(remote.locks) == list(layout.look_at_locks(store, "tale")) == [1]
    if data:
        with pytest.raises(UserError, match=r"the lock of .*tale cannot be read"):
            last(store, "tale", remote)


@pytest.mark.parametrize(
    ("seconds", "held", "alive"), [(1, True, True), (EXPIRES_AFTER_S + 1, True, False), (1, False, False)]
)
def test_a_writer_elsewhere_counts_until_its_lock_expires(seconds: float, held: bool, alive: bool) -> None:
    writer = Writer(token="a", pid=1, host="there", machine="another", started=1, time=0.0, held=held)
    assert Last(writer=writer, seconds=seconds).alive is alive


def test_a_writer_that_lost_the_lock_notices_and_stops_writing(bucket: str) -> None:
    store = open_store(bucket)
    lock = Lock(store, "tale")
    lock.take(layout.look(store, "tale"))
    lock._renewed -= EXPIRES_AFTER_S  # not renewed for a minute
    assert store.put_if_absent(f"tale/{layout.lock(2)}", b"{}")
    with pytest.raises(UserError):
        lock.check()
    assert not lock.renew()
