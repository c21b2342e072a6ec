"""What a supervisor adds for a run that is kept in a store: all that is new goes up while it trains, and at the end."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from stoker.rundir import Exit, RunDir
from stoker.spec import contract
from stoker.spec.errors import SavedForLater, UserError
from stoker.storage import layout
from stoker.storage.copy import Copy, State
from stoker.storage.lock import Lock, last, refuse_second
from stoker.storage.mirror import remote_of
from stoker.storage.push import Push
from stoker.storage.store import StoreError, open_store

PERIOD = 2.0  # seconds between two looks at what is new
LONGEST_WAIT = 30.0  # between two tries while the store does not answer
TRIES = 5  # at the end, each twice as long after the one before
SHOWN = 3


def mirrored(run: RunDir, work: Callable[[], int], *, hurry: Callable[[], bool]) -> int:
    """Do the work of a supervisor, and return its exit code; 75 when not all of it could be brought to the store.

    The caller holds the run's lock. A run that is kept in a folder is there already. `hurry` tells that nobody waits.
    """
    url = remote_of(run.path.parent)
    if url is None:
        return work()
    sync = Sync(Copy(run, open_store(url)))
    sync.start()
    try:
        code = work()
        if not sync.settle(hurry):
            return sync.give_up(code, "it was told to end at once")
        return sync.finish(code, hurry)
    finally:
        sync.stop()  # this process may live on, and another may take the run over


def publish(run: RunDir) -> None:
    """Bring a run that was made here in one go to the store, if that is where it is kept."""
    url = remote_of(run.path.parent)
    if url is None:
        return
    Copy(run, open_store(url)).claim()
    with run.lock():
        if mirrored(run, lambda: contract.EXIT_DONE, hurry=lambda: False) != contract.EXIT_DONE:
            exit = run.exit()
            raise SavedForLater(exit.reason if exit else "not all is in the store", remedy="")


class Sync:
    def __init__(self, copy: Copy) -> None:
        self._copy, self._run, self._store = copy, copy.run, copy.store
        self._lock = Lock(copy.store, copy.name)
        self._trouble: set[str] = set()
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

    def settle(self, hurry: Callable[[], bool]) -> bool:
        """Let a checkpoint that is on its way go up. False when that takes too long for somebody."""
        self._stops["checkpoints"].set()
        while self._threads["checkpoints"].is_alive():
            if hurry():
                return False
            time.sleep(0.05)
        return True

    def finish(self, code: int, hurry: Callable[[], bool]) -> int:
        problem = ""
        for wait in (*(2.0**n for n in range(TRIES - 1)), None):
            try:
                self._all()
                return code
            except (StoreError, OSError) as e:
                problem = _in_words(e)
            if self._lost:
                return self._end_as_lost()
            if wait is None or hurry():
                break
            time.sleep(wait)
        return self.give_up(code, problem)

    def give_up(self, code: int, problem: str) -> int:
        """The work is safe here; the same command brings the rest of it to the store."""
        missing = self._push.missing()
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        what = ", ".join(missing[:SHOWN]) + more or contract.EXIT_FILE
        reason = f"not yet in {self._store.url}: {what} ({problem})"
        print(f"stoker: {reason}", file=sys.stderr)
        exit = self._run.exit()
        if exit is not None and exit.state == "failed":
            return code
        self._run.write_exit(
            Exit(
                state="paused",
                code=contract.EXIT_SAVED,
                step=exit.step if exit else None,
                reason=f"{exit.reason}; {reason}" if exit else reason,
                remedy="Run the same command again once the store can be reached: it goes up then",
            )
        )
        return contract.EXIT_SAVED

    def _take(self) -> tuple[State, Push]:
        with self._copy.alone() as state:
            remote = layout.look(self._store, self._copy.name)
            found = last(self._store, self._copy.name, remote)
            refuse_second(self._copy.name, found)
            if found.token not in state.seen:
                raise UserError(
                    f"run '{self._copy.name}' has gone on elsewhere since this command began",
                    remedy="Run it again: it goes on from there",
                )
            state.seen = [found.token, self._lock.token]  # before it is true: a kill may come in between
            state.dirty = True
            self._copy.save(state)
            self._lock.take(remote)
            state.seen = [self._lock.token]
            push = Push(self._copy, state, remote, self._lock.check)
            push.begin()
            return state, push

    def _repeat(self, name: str) -> None:
        wait = PERIOD
        while not self._stops[name].wait(wait):
            try:
                self._rounds[name]()
            except (StoreError, OSError) as e:
                wait = min(2 * wait, LONGEST_WAIT)
                if name not in self._trouble:  # said once, until it is over
                    self._trouble.add(name)
                    self._note(f"{_in_words(e)}: training goes on, and what is new goes up later")
                continue
            wait = PERIOD
            if name in self._trouble:
                self._trouble.remove(name)
                self._note(f"{self._store.url} is there again: what was missing goes up")

    def _small(self) -> None:
        try:
            self._give_sign()
        except StoreError:
            if self._lost and not self._stops["small"].is_set():
                self.stop()
                os.kill(os.getpid(), signal.SIGTERM)  # the supervisor's own way to save and end
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
            self._run.add_event("note", text=text)

    def _all(self) -> None:
        """While checkpoints go up, the other thread still gives signs of life."""
        self._give_sign()
        while self._push.checkpoint():
            pass
        self._push.prune()
        self._stops["small"].set()
        self._threads["small"].join()
        self._give_sign()
        self._push.small(last=True)
        self._push.exit()
        self._lock.release()
        self._state.dirty = False
        self._copy.save(self._state)

    def _give_sign(self) -> None:
        if not self._lock.renew():
            self._lost = True
            raise StoreError(f"somebody else writes {self._store.url}/{self._copy.name} now", remedy="")

    def _end_as_lost(self) -> int:
        who = "another process"
        with suppress(StoreError):
            found = last(self._store, self._copy.name, layout.look(self._store, self._copy.name))
            who = f"process {found.writer.pid} on {found.writer.host}" if found.writer else who
        exit = Exit(
            state="failed",
            code=contract.EXIT_FAILED,
            step=None,
            reason=f"{who} has taken the run over while {self._store.url} could not be reached from here",
            remedy="Let that one go on: stoker status tells where it stands",
        )
        self._run.write_exit(exit)
        return exit.code


def _in_words(error: StoreError | OSError) -> str:
    return error.problem if isinstance(error, StoreError) else str(error)
