"""Uploads a run that is kept in a store while it trains, and at the end. Used by the supervisor."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from stoker.rundir import Exit, RunDir
from stoker.rundir.events import Note
from stoker.rundir.state import RunState
from stoker.spec import contract
from stoker.spec.errors import SavedForLater, UserError
from stoker.storage import layout
from stoker.storage.lock import Lock, last, refuse_second
from stoker.storage.mirror import remote_of
from stoker.storage.store import StoreError, open_store
from stoker.storage.upload import Uploader
from stoker.storage.working_copy import CopyState, WorkingCopy

UPLOAD_EVERY_S = 2.0
MAX_WAIT_S = 30.0  # between two tries while the store does not answer
TRIES = 5  # at the end, with doubled pauses
POLL_S = 0.05
INTERRUPTED = "it had to end at once"
MAX_SHOWN = 3


def mirrored(run: RunDir, work: Callable[[], int], *, hurry: Callable[[], bool]) -> int:
    """Does the work of a supervisor and returns its exit code; 75 if not everything could be uploaded.

    The caller holds the run's lock. A run that is kept in a folder needs no upload. `hurry`: end as soon as possible.
    """
    url = remote_of(run.path.parent)
    if url is None:
        return work()
    sync = Sync(WorkingCopy(run, open_store(url)))
    sync.start()
    try:
        return sync.finish(work(), hurry)
    finally:
        sync.stop()  # this process may live on, and another may take over the run


def publish(run: RunDir) -> None:
    """Uploads a finished run, if it is kept in a store."""
    url = remote_of(run.path.parent)
    if url is None:
        return
    WorkingCopy(run, open_store(url)).claim()
    with run.lock():
        if mirrored(run, lambda: contract.EXIT_DONE, hurry=lambda: False) != contract.EXIT_DONE:
            exit = run.exit()
            raise SavedForLater(exit.reason if exit else "not all is in the store", remedy="")


class Sync:
    def __init__(self, copy: WorkingCopy) -> None:
        self._copy, self._run, self._store = copy, copy.run, copy.store
        self._lock = Lock(copy.store, copy.name)
        self._failing: set[str] = set()
        self._lost = False
        self._state, self._push = self._take()
        self._rounds = {"checkpoints": self._checkpoints, "small": self._small}
        self._stops = {name: threading.Event() for name in self._rounds}
        self._threads = {
            name: threading.Thread(target=self._repeat, args=(name,), daemon=True, name=f"store-{name}")
            for name in self._rounds
        }

    def start(self) -> None:
        for thread in self._threads.values():
            thread.start()

    def stop(self) -> None:
        for stop in self._stops.values():
            stop.set()

    def finish(self, code: int, hurry: Callable[[], bool]) -> int:
        """Uploads the rest, and returns the exit code of the run. `hurry` cuts it short at any time."""
        self._stops["checkpoints"].set()  # the checkpoint that it is uploading comes first
        if not _wait_until(lambda: not self._threads["checkpoints"].is_alive(), hurry):
            return self._give_up(code, INTERRUPTED)
        problem = ""
        for pause in (*(2.0**n for n in range(TRIES - 1)), None):
            upload = _in_background(self._all)
            if not _wait_until(upload.done, hurry):
                return self._give_up(code, INTERRUPTED)
            try:
                upload.result()
                return code
            except (StoreError, OSError) as e:
                problem = _reason(e)
            if self._lost:
                return self._end_as_lost()
            if pause is None or hurry():
                break
            time.sleep(pause)
        return self._give_up(code, problem)

    def _give_up(self, code: int, problem: str) -> int:
        """Ends the run as paused: its files are complete on this machine, and the same command uploads the rest."""
        missing = self._push.missing()
        more = f" and {len(missing) - MAX_SHOWN} more" if len(missing) > MAX_SHOWN else ""
        unsent = ", ".join(missing[:MAX_SHOWN]) + more or contract.EXIT_FILE
        reason = f"not yet in {self._store.url}: {unsent} ({problem})"
        print(f"stoker: {reason}", file=sys.stderr)
        exit = self._run.exit()
        if exit is not None and exit.state == RunState.FAILED:
            return code
        self._run.write_exit(
            Exit(
                state=RunState.PAUSED,
                code=contract.EXIT_SAVED,
                step=exit.step if exit else None,
                reason=f"{exit.reason}; {reason}" if exit else reason,
                remedy="Run the same command again once the store can be reached: it uploads the rest",
            )
        )
        return contract.EXIT_SAVED

    def _take(self) -> tuple[CopyState, Uploader]:
        with self._copy.locked() as state:
            remote = layout.look(self._store, self._copy.name)
            newest = last(self._store, self._copy.name, remote)
            refuse_second(self._copy.name, newest)
            if newest.token not in state.seen:
                raise UserError(
                    f"run '{self._copy.name}' was resumed elsewhere since this command started",
                    remedy="Run it again: it resumes from there",
                )
            state.seen = [newest.token, self._lock.token]  # recorded first: a kill may come before the lock is taken
            state.dirty = True
            self._copy.save(state)
            self._lock.take(remote)
            state.seen = [self._lock.token]
            push = Uploader(self._copy, state, remote, self._lock.check)
            push.begin()
            return state, push

    def _repeat(self, name: str) -> None:
        wait = UPLOAD_EVERY_S
        while not self._stops[name].wait(wait):
            try:
                self._rounds[name]()
            except (StoreError, OSError) as e:
                wait = min(2 * wait, MAX_WAIT_S)
                if name not in self._failing:  # reported once per outage
                    self._failing.add(name)
                    self._note(f"{_reason(e)}: training continues, and the rest is uploaded later")
                continue
            wait = UPLOAD_EVERY_S
            if name in self._failing:
                self._failing.remove(name)
                self._note(f"{self._store.url} can be reached again: the rest is being uploaded")

    def _small(self) -> None:
        try:
            self._renew_lock()
        except StoreError:
            if self._lost and not self._stops["small"].is_set():
                self.stop()
                os.kill(os.getpid(), signal.SIGTERM)  # the supervisor saves the run and ends
            raise
        self._push.small()

    def _checkpoints(self) -> None:
        while self._push.checkpoint():
            self._push.prune()
            if self._stops["checkpoints"].is_set():
                return
        self._push.prune()

    def _note(self, text: str) -> None:
        with suppress(OSError):  # a full disk stops a save, not the supervisor
            self._run.add_event(Note(text=text))

    def _all(self) -> None:
        """Uploads everything; the other thread keeps renewing the lock while checkpoints are uploaded."""
        self._renew_lock()
        while self._push.checkpoint():
            pass
        self._push.prune()
        self._stops["small"].set()
        self._threads["small"].join()
        self._renew_lock()
        self._push.small(last=True)
        self._push.exit()
        self._lock.release()
        self._state.dirty = False
        self._copy.save(self._state)

    def _renew_lock(self) -> None:
        if not self._lock.renew():
            self._lost = True
            raise StoreError(f"another process writes {self._store.url}/{self._copy.name} now", remedy="")

    def _end_as_lost(self) -> int:
        writer = "another process"
        with suppress(StoreError):
            newest = last(self._store, self._copy.name, layout.look(self._store, self._copy.name))
            writer = f"process {newest.writer.pid} on {newest.writer.host}" if newest.writer else writer
        exit = Exit(
            state=RunState.FAILED,
            code=contract.EXIT_FAILED,
            step=None,
            reason=f"{writer} has taken over the run while {self._store.url} could not be reached",
            remedy="Let that process continue; see: stoker status",
        )
        self._run.write_exit(exit)
        return exit.code


def _in_background(work: Callable[[], None]) -> Future[None]:
    """Starts a thread that does not keep the process alive."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except BaseException as e:
            done.set_exception(e)
        else:
            done.set_result(None)

    threading.Thread(target=run, daemon=True, name="store-end").start()
    return done


def _wait_until(condition: Callable[[], bool], hurry: Callable[[], bool]) -> bool:
    """False if `hurry` comes first."""
    while not condition():
        if hurry():
            return False
        time.sleep(POLL_S)
    return True


def _reason(error: StoreError | OSError) -> str:
    return error.problem if isinstance(error, StoreError) else str(error)
