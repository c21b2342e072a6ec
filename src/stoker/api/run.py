"""A run in Python: submit or open one, watch it, wait for it, stop it.

Nothing here handles signals or starts threads, so it works in a notebook, beside other threads and after a fork.
"""

import importlib
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from stoker.api.launch import NullListener, await_start, launch, plan
from stoker.backends import backend_of
from stoker.backends.backend import Backend, Running, Scaled
from stoker.data.prepare import PrepareProgress, ignore
from stoker.observe.runs import find
from stoker.rundir import Exit, Record, RunDir, consent
from stoker.rundir.commands import command_name, default_runs
from stoker.rundir.view import RunView
from stoker.spec import contract
from stoker.spec import load as loading
from stoker.spec.errors import UserError
from stoker.spec.run import AnySpec
from stoker.storage.mirror import place, run_dir

ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"  # no l, o, 0, 1: names are read aloud and typed
POLL_S = 0.2


class Run:
    """A run, wherever it executes. Each call reads its current state."""

    def __init__(self, directory: RunDir, running: Running | None = None) -> None:
        self._directory = directory
        self._running = running
        """Set if this process started it: only a parent process sees the exit code of a supervisor that was killed."""
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
        """The spec of the run, with every default filled in."""
        return self._directory.any_spec()

    def view(self) -> RunView:
        """State, step, loss, speed, time left: what `stoker status` shows."""
        return self._backend.view(self._directory)

    def wait(self, timeout: float | None = None) -> Exit:
        """Wait until nothing trains it any more; returns how it ended. Raises TimeoutError after `timeout` seconds.

        A failed run raises nothing: check `state`, which is done, paused or failed, and `reason`.
        """
        code = None
        if self._running is not None and self._parent == os.getpid():  # a forked child cannot wait for its sibling
            # 0 is also reported for a child that another part of this process has waited for
            code = self._poll(self._running, timeout) or None
        return self._backend.wait(self._directory, timeout_s=timeout, code=code)

    def metrics(self) -> Any:
        """One record per logged step: a pandas DataFrame where pandas is installed, else a list of dicts."""
        return _frame(self._backend.metrics(self._directory))

    def events(self) -> list[Record]:
        """What happened to it: started, resumed, checkpoint, failed, finished …, each with its time."""
        return [event.record() for event in self._backend.events(self._directory, follow=False)]

    def logs(self, rank: int | None = 0, tail: int | None = None) -> Iterator[str]:
        """Lines that a worker has printed; those of all workers, each with its rank, when `rank` is None."""
        lines = self._backend.logs(self._directory, rank=rank, tail=tail, since=None, follow=False, pause=lambda: False)
        first = list(islice(lines, 1))  # errors are raised here, and not when the caller iterates
        return (f"[{line.rank}] {line.line}" if rank is None else line.line for line in chain(first, lines))

    def stop(self) -> bool:
        """Ask it to save and stop; `wait()` returns when it has. False if it is not running."""
        return self._backend.stop(self._directory)

    def scale(
        self,
        nodes: int | str,
        *,
        message: Callable[[str], None] = lambda _: None,
        committed: Callable[[], None] = lambda: None,
    ) -> Scaled:
        """Change the number of nodes of a run in a cluster while it runs: 3, or "1..4".

        `message` receives warnings before anything changes; then `committed` is called, and after that this must not be
        interrupted. Raises UserError, and changes nothing, if the run is not running or cannot have that many nodes.
        """
        return self._backend.scale(self._directory, str(nodes), message=message, committed=committed)

    @property
    def _backend(self) -> Backend:
        return backend_of(self._directory)

    def _poll(self, running: Running, timeout: float | None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while (code := running.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise TimeoutError(f"run '{self.name}' has not ended in {timeout} s")
            time.sleep(POLL_S)
        return code

    def __repr__(self) -> str:
        now = self.view()
        return f"Run({self.name!r}, {now.state}, step {now.step})"


def submit(
    spec: AnySpec | Path | str,
    *overrides: str,
    runs: Path | str | None = None,
    progress: Callable[[PrepareProgress], None] = ignore,
) -> Run:
    """Start a new run in the background. `spec` is a spec or a run file; `overrides` are key=value.

    It prepares the data first, and reports that to `progress`. The run gets a unique name, NAME-xxxx, and outlives
    this process. Raises UserError, and starts nothing, if something is wrong with the spec.
    """
    folder = place(runs or default_runs())
    return launch_run(unique_name(read_spec(spec, overrides).launchable, folder), runs=folder, progress=progress)


def load(spec: AnySpec | Path | str, *overrides: str) -> AnySpec:
    """The spec of a run file, or another spec, with key=value overrides. Raises UserError."""
    return read_spec(spec, overrides).spec


def read_spec(spec: AnySpec | Path | str | None, overrides: Sequence[str]) -> loading.Loaded:
    """Like `load`, with the origin of each value. The run file of a run may need the user's consent to execute code."""
    if spec is None or isinstance(spec, AnySpec):
        return loading.load(spec, overrides)
    file = Path(os.path.expanduser(spec))  # unlike Path.expanduser, leaves the ~ of an unknown user as it is
    loaded = loading.load(file, overrides)
    if run := consent.run_of(file):
        consent.require_launch(run, loaded.spec)
    return loaded


def copied_spec(run: RunDir, overrides: Sequence[str]) -> AnySpec:
    """The spec of an existing run with overrides, to start another run like it."""
    spec = loading.load(run.path / contract.SPEC_FILE, overrides).launchable
    consent.require_launch(run, spec)
    return spec


def resumed_spec(run: RunDir, overrides: Sequence[str]) -> AnySpec:
    """The spec of an existing run with overrides, to resume it. Raises UserError if it is running, or is renamed."""
    spec = copied_spec(run, overrides)
    name = command_name(run)
    if any(override.startswith("name=") for override in overrides):
        raise UserError(
            f"run '{run.name}' cannot be renamed", remedy=f"Start another like it with: stoker launch {name} --new"
        )
    if holder := run.holder():
        raise UserError(
            f"run '{run.name}' is running already: process {holder['pid']} on {holder['host']}",
            remedy=f"Watch it with: stoker logs {name} -f, or stop it first with: stoker stop {name}",
        )
    return spec.model_copy(update={"name": run.name})


def unique_name(spec: AnySpec, runs: Path) -> AnySpec:
    """The same spec under a name that no run has yet: NAME-xxxx."""
    kept = spec.on.run_name(spec.name)
    while True:
        suffix = "".join(secrets.choice(ALPHABET) for _ in range(4))
        name = f"{kept}-{suffix}"
        if not run_dir(runs / name).exists():
            return spec.model_copy(update={"name": name})


def launch_run(spec: AnySpec, *, runs: Path, progress: Callable[[PrepareProgress], None] = ignore) -> Run:
    """Start the run of that name, or resume it, in the background."""
    launched = launch(plan(spec, runs=runs), listener=_PrepareListener(progress))
    if launched.running is None:
        return Run(launched.run)
    await_start(launched.run, launched.running)  # from now on its state is running, or how it ended
    return Run(launched.run, launched.running)


class _PrepareListener(NullListener):
    def __init__(self, progress: Callable[[PrepareProgress], None]) -> None:
        self._progress = progress

    def preparing(self, progress: PrepareProgress) -> None:
        self._progress(progress)


def open_run(run: str | Path, *, runs: Path | str | None = None) -> Run:
    """A run by its folder, or by its name under `runs`. Raises UserError when there is none."""
    return Run(find(str(run), place(runs or default_runs())))


def _frame(records: list[Record]) -> Any:
    try:
        pandas = importlib.import_module("pandas")
    except ImportError:
        return records
    return pandas.DataFrame.from_records(records)
