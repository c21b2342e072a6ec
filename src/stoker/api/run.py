"""A run in Python: submit one or open one, watch it, wait for it, stop it.

Nothing here handles signals or keeps threads, so it works in a notebook, beside other threads and after a fork.
"""

import importlib
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stoker.api.opening import begin
from stoker.api.origins import as_asked
from stoker.api.running import POLL, await_start, ending, plan, start
from stoker.data.prepare import Progress, ignore
from stoker.launch.backend import Running
from stoker.launch.local import Local
from stoker.observe.logs import LogView
from stoker.observe.runs import RunView, find, view_anywhere
from stoker.rundir import Exit, Record, RunDir, consent
from stoker.spec import load as loading
from stoker.spec.on import cluster_name
from stoker.spec.run import AnySpec
from stoker.storage.mirror import place, run_dir

ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"  # no l, o, 0, 1: names are read aloud and typed
LONGEST = 95  # characters of a name that a suffix is put to: a run's name has 100 at most
KILLED = -9
ELSEWHERE = {"kubernetes": "stoker.api.cluster"}
"""What handles runs that do not live here; heavy, so by name."""
SCALING = "stoker.launch.scaling"
"""What gives them other nodes."""
RECORDS = {"kubernetes": "stoker.observe.cluster_records"}
"""What reads what they have written down."""


class Run:
    """A run, wherever it stands: everything is read anew from its directory at each call."""

    def __init__(self, directory: RunDir, running: Running | None = None) -> None:
        self._directory = directory
        self._running = running
        """Set where this process started it: only a parent learns how a supervisor that had no time to say so ended."""
        self._parent = os.getpid()

    @property
    def name(self) -> str:
        return self._directory.name

    @property
    def path(self) -> Path:
        """The run directory."""
        return self._directory.path

    @property
    def spec(self) -> AnySpec:
        """What it was asked to do, every value filled in."""
        return self._directory.any_spec()

    def view(self) -> RunView:
        """State, step, loss, speed, time left: what `stoker status` shows."""
        return view_anywhere(self._directory)

    def wait(self, timeout: float | None = None) -> Exit:
        """How it ended, once nobody trains it any more. Raises TimeoutError after `timeout` seconds.

        A run that failed is no exception here: look at `state`, which is done, paused or failed, and at `reason`.
        """
        end = None if timeout is None else time.monotonic() + timeout
        place = self._directory.place_ref()
        if place:
            left: Exit = _elsewhere(place.kind).wait(self._directory, seconds=timeout)
            return left
        while (code := self._code()) is None:
            if end is not None and time.monotonic() > end:
                raise TimeoutError(f"run '{self.name}' has not ended in {timeout} s")
            time.sleep(POLL)
        return ending(self._directory, code)

    def metrics(self) -> Any:
        """One record a logged step: a pandas DataFrame where pandas is installed, else a list of dicts."""
        place = self._directory.place_ref()
        return _frame(_records(place.kind).metrics(self._directory) if place else self._directory.metrics())

    def events(self) -> list[Record]:
        """What happened to it: started, resumed, checkpoint, failed, finished …, each with its time."""
        place = self._directory.place_ref()
        found: list[Record] = _records(place.kind).events(self._directory) if place else self._directory.events()
        return found

    def logs(self, rank: int | None = 0, tail: int | None = None) -> Iterator[str]:
        """Lines that a worker has printed; those of all workers, each with its rank, when `rank` is None."""
        place = self._directory.place_ref()
        if place:
            lines: Iterator[str] = _records(place.kind).logs(self._directory, rank=rank, tail=tail)
            return lines
        return LogView(self._directory, rank=rank, tail=tail).lines()

    def stop(self) -> bool:
        """Ask it to save and end; `wait()` tells when it has. False when it does not run."""
        place = self._directory.place_ref()
        return bool(_elsewhere(place.kind).stop(self._directory)) if place else Local().stop(self._directory)

    def scale(
        self,
        nodes: int | str,
        *,
        say: Callable[[str], None] = lambda _: None,
        committed: Callable[[], None] = lambda: None,
    ) -> Any:
        """More nodes or fewer while it runs in a cluster: 3, or "1..4". Tells `was`, `nodes`, `how` and `warnings`.

        `say` is given the warnings before anything changes; then `committed` is called, and from there it must not be
        cut off. Raises UserError when it does not run there, or cannot have so many: then nothing has changed.
        """
        scaling = importlib.import_module(SCALING)
        return scaling.scale(self._directory, str(nodes), anew=_anew, say=say, committed=committed)

    def _code(self) -> int | None:
        """The exit code once it has ended; a run whose supervisor was killed has no word of its own."""
        if self._running is not None and self._parent == os.getpid():  # a forked child cannot wait for its sibling
            code = self._running.poll()
            if code != 0:  # 0 is also told of a child that somebody else in this process has waited for
                return code
        elif self._directory.holder() is not None:
            return None
        exit = self._directory.exit()
        return exit.code if exit else KILLED

    def __repr__(self) -> str:
        now = self.view()
        return f"Run({self.name!r}, {now.state}, step {now.step})"


def submit(
    spec: AnySpec | Path | str,
    *words: str,
    runs: Path | str = "runs",
    progress: Callable[[Progress], None] = ignore,
) -> Run:
    """Start a new run in the background: `spec` is one, or a run file; `key=value` words overrule it.

    It prepares the data first, and tells `progress` how far that is. The run has a name of its own, NAME-xxxx, and
    outlives this process. Raises UserError when something is wrong with what was asked for; then nothing was started.
    """
    folder = place(runs)
    return go_on(unique_name(_loaded(spec, *words).launchable, folder), runs=folder, progress=progress)


def load(spec: AnySpec | Path | str, *words: str) -> AnySpec:
    """The spec that a run file, or another spec, and `key=value` words describe. Raises UserError."""
    return _loaded(spec, *words).spec


def _loaded(spec: AnySpec | Path | str, *words: str) -> loading.Loaded:
    if isinstance(spec, AnySpec):
        return loading.load(spec, words)
    file = Path(spec).expanduser()
    loaded = loading.load(file, words)
    if run := consent.run_of(file):
        consent.require_launch(run, loaded.spec)
    return loaded


def unique_name(spec: AnySpec, runs: Path) -> AnySpec:
    """The same spec under a name that no run has yet: NAME-xxxx."""
    kept = cluster_name(spec.name) if spec.on.kind == "kubernetes" else spec.name[:LONGEST]
    while True:
        suffix = "".join(secrets.choice(ALPHABET) for _ in range(4))
        name = f"{kept}-{suffix}"
        if not run_dir(runs / name).exists():
            return spec.model_copy(update={"name": name})


def go_on(spec: AnySpec, *, runs: Path, progress: Callable[[Progress], None] = ignore) -> Run:
    """Start the run of that name, or go on with it, in the background."""
    spec = as_asked(spec, runs=runs)
    directory = RunDir(runs / spec.name)
    if spec.on.kind in ELSEWHERE:
        _elsewhere(spec.on.kind).go_on(spec, runs=runs, progress=progress)
        return Run(directory)
    submission = plan(spec, directory)
    opened = begin(spec, runs=runs, progress=progress)
    if opened.done:
        return Run(directory)
    running = start(submission, detached=True)
    await_start(directory, running)  # from now on all who look see a run that runs, or how it ended
    return Run(directory, running)


def open_run(run: str | Path, *, runs: Path | str = "runs") -> Run:
    """A run by its folder, or by its name under `runs`. Raises UserError when there is none."""
    return Run(find(str(run), place(runs)))


def _elsewhere(kind: str) -> Any:
    return importlib.import_module(ELSEWHERE[kind])


def _anew(spec: AnySpec, run: RunDir) -> Callable[[], None]:
    send: Callable[[], None] = _elsewhere(spec.on.kind).anew(spec, run)
    return send


def _records(kind: str) -> Any:
    return importlib.import_module(RECORDS[kind])


def _frame(records: list[Record]) -> Any:
    try:
        pandas = importlib.import_module("pandas")
    except ImportError:
        return records
    return pandas.DataFrame.from_records(records)
