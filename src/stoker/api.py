"""What Python users call, and what the command line is built on.

spec = load(Path("run.yaml"), ["until.steps=2k"]).spec
exit = train(open_run(spec, runs=Path("runs")))
"""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stoker.data.files import covers, is_there
from stoker.data.prepare import Progress, ignore, is_prepared, prepared
from stoker.data.shards import INDEX_FILE, TokenSet
from stoker.launch.backend import Running, Submission
from stoker.launch.local import Local
from stoker.observe.logs import last_lines
from stoker.rundir import DataRef, Exit, RunDir
from stoker.spec import contract
from stoker.spec.change import Changes, difference
from stoker.spec.derive import Derived, derive
from stoker.spec.errors import UserError
from stoker.spec.run import RunSpec

POLL = 0.2  # seconds between two looks at a run
PREPARED = ".prepared"
VOCAB_ROUNDING = 128  # a vocabulary may be padded up to a multiple of this, for the matrix units


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """A run that is ready to be started, or is done."""

    run: RunDir
    spec: RunSpec
    tokens: TokenSet
    derived: Derived
    done: Exit | None
    """How it ended, when there is nothing left to do."""


def open_run(spec: RunSpec, *, runs: Path, progress: Callable[[Progress], None] = ignore) -> Opened:
    """Prepare the data; create the run, or open the one that is there if it is the same."""
    run = RunDir(runs / spec.name)
    store = runs.absolute() / PREPARED
    _refuse_inside_data(run, spec)
    if run.exists():
        with run.lock():
            return _existing(run, spec, store, progress)
    tokens = prepared(spec.data, store, progress=progress)
    spec = _fill(spec, tokens)
    _check_size(spec, tokens)
    _create(run, spec, tokens)
    return _opened(run, spec, tokens, done=None)


def free_name(spec: RunSpec, runs: Path) -> RunSpec:
    """The same spec under a name that no run has yet: NAME, NAME-2, NAME-3 …"""
    name, number = spec.name, 1
    while RunDir(runs / name).exists():
        number += 1
        name = f"{spec.name}-{number}"
    return spec.model_copy(update={"name": name})


def plan(spec: RunSpec, run: RunDir) -> Submission:
    backend = Local()
    return backend.plan(spec, backend.discover(), run.path)


def submit(submission: Submission) -> Running:
    """Start it; it dies with this process."""
    return Local().submit(submission)


def train(opened: Opened) -> Exit:
    """Train until it is done. Ctrl-C saves first."""
    if opened.done:
        return opened.done
    running = submit(plan(opened.spec, opened.run))
    return ending(opened.run, follow(running))


def follow(running: Running, look: Callable[[], None] = lambda: None) -> int:
    """Wait until it has ended, and `look` now and then. Whatever cuts this short, the run saves first."""
    try:
        while True:
            code = running.poll()
            look()  # after the poll: all that was written before the end is seen
            if code is not None:
                return code
            time.sleep(POLL)
    finally:
        if running.poll() is None:
            running.stop()
        while running.poll() is None:
            time.sleep(POLL)


def ending(run: RunDir, code: int) -> Exit:
    """How a run ended: its own word, or what can be told when it had no time for one."""
    exit = run.exit()
    if exit is not None and exit.code == code:
        return exit
    step = max((saved.step for saved in run.saved()), default=None)
    if code == contract.EXIT_SAVED:  # without exit.json: there was no room for it
        last = "no checkpoint stands" if step is None else f"the checkpoint of step {step} stands"
        reason = f"the run could not write down how it ended; {last}"
        remedy = "Make room on its disk, then run the same command again"
        return Exit(state="paused", code=code, step=step, reason=reason, remedy=remedy)
    log = run.path / contract.LOGS_DIR / contract.SUPERVISOR_LOG
    said = " ".join(last_lines(log, 1)).removeprefix("stoker: ")
    if code == contract.EXIT_USER:
        raise UserError(said, remedy="")
    return Exit(
        state="failed",
        code=contract.EXIT_FAILED,
        step=step,
        reason=f"the supervisor ended with code {code}",
        remedy=f"Its log is {log}; the same stoker train command goes on",
    )


def _existing(run: RunDir, spec: RunSpec, store: Path, progress: Callable[[Progress], None]) -> Opened:
    old = run.spec()
    changes = difference(old, spec)
    if changes.refused:
        raise _another_run(run, changes.refused)
    kept = None if changes.data else _kept(run, spec)
    tokens = kept or prepared(spec.data, store, progress=progress)
    if tokens.key != run.data().key:
        raise _another_run(run, changes.data or {"data": ("what the files held when it began", "what they hold now")})
    spec = _fill(spec, tokens).model_copy(update={"name": old.name})
    opened = _opened(run, spec, tokens, done=_done(run, spec, tokens, changes.allowed))
    if changes.allowed:
        run.write_spec(spec)
        run.add_event("changed", changes={key: list(values) for key, values in changes.allowed.items()})
    if not opened.done:
        run.clear_exit()
    if kept and not opened.done:
        gone = ", ".join(_words(spec))
        run.add_event("note", text=f"{gone} is gone: the run goes on with the tokens made of it, in {kept.path}")
    return opened


def _kept(run: RunDir, spec: RunSpec) -> TokenSet | None:
    """The token set that the run began with, when nothing is left of the text that it was made of."""
    began = run.data()
    folder = Path(began.shards)
    if any(map(is_there, _words(spec))) or not (folder / INDEX_FILE).is_file():
        return None
    tokens = TokenSet.open(folder)
    return tokens if tokens.key == began.key else None


def _refuse_inside_data(run: RunDir, spec: RunSpec) -> None:
    """What a run writes must not become its data: it could never go on."""
    if is_prepared(spec.data):
        return
    written = (
        *(run.path / name for name in (contract.SPEC_FILE, contract.DATA_FILE, contract.METRICS_FILE)),
        *(run.log(0), run.ledger / "attempt-0001-rank-0000.jsonl", run.checkpoint(1) / contract.MANIFEST_FILE),
    )
    for word in _words(spec):
        if any(covers(word, file) for file in written):
            raise UserError(
                f"the run's folder {run.path} lies inside its data {word}, and what it writes would become data",
                remedy="Keep runs elsewhere with --runs DIR, or name the text more narrowly in data.path",
            )


def _words(spec: RunSpec) -> list[str]:
    return [spec.data.path] if isinstance(spec.data.path, str) else spec.data.path


def _done(run: RunDir, spec: RunSpec, tokens: TokenSet, changed: Changes) -> Exit | None:
    """A run that is done stays done until its end is put further off, or it is sent back to an earlier step."""
    exit = run.exit()
    if exit is None or exit.state != "done" or "checkpoint.resume" in changed:
        return None
    if not any(key.startswith("until.") for key in changed):
        return exit
    steps = _derived(run, spec, tokens).steps
    return exit if steps is not None and steps <= (exit.step or 0) else None


def _opened(run: RunDir, spec: RunSpec, tokens: TokenSet, *, done: Exit | None) -> Opened:
    derived = _derived(run, spec, tokens)
    return Opened(run=run, spec=spec, tokens=tokens, derived=derived, done=done)


def _derived(run: RunDir, spec: RunSpec, tokens: TokenSet) -> Derived:
    saved = run.saved()
    progress = saved[-1].manifest["state"]["progress"] if saved else {}
    return derive(
        spec,
        samples=tokens.train.samples(spec.batch.length),
        step=progress.get("step", 0),
        drawn=progress.get("drawn", 0),
    )


def _another_run(run: RunDir, changes: Changes) -> UserError:
    shown = ", ".join(f"{key}: {old} -> {new}" for key, (old, new) in changes.items())
    return UserError(
        f"run '{run.name}' in {run.path} was begun with something else ({shown})",
        remedy="Set it back to go on with that run, or start another with --new",
    )


def _create(run: RunDir, spec: RunSpec, tokens: TokenSet) -> None:
    try:
        run.path.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise UserError(f"cannot make {run.path}: {e.strerror}", remedy="Choose another folder with --runs DIR") from e
    with run.lock():
        if run.exists():
            raise UserError(
                f"run '{run.name}' was begun by another command just now", remedy="Start another with --new"
            )
        shutil.copytree(tokens.tokenizer, run.tokenizer, dirs_exist_ok=True)
        run.create(spec, DataRef(shards=str(tokens.path.absolute()), key=tokens.key))


def _fill(spec: RunSpec, tokens: TokenSet) -> RunSpec:
    """The model's vocabulary: the tokenizer's, unless the spec says a little more."""
    most = -(-tokens.vocab // VOCAB_ROUNDING) * VOCAB_ROUNDING
    vocab = spec.model.vocab or tokens.vocab
    if not tokens.vocab <= vocab <= most:
        raise UserError(
            f"model.vocab is {vocab}, but the tokenizer has {tokens.vocab} tokens",
            remedy=f"Leave model.vocab out, or set it from {tokens.vocab} to {most}",
        )
    return spec.model_copy(update={"model": spec.model.model_copy(update={"vocab": vocab})})


def _check_size(spec: RunSpec, tokens: TokenSet) -> None:
    batch = spec.batch
    samples = tokens.train.samples(batch.length)
    if samples < batch.sequences:
        raise UserError(
            f"the data has {tokens.train.tokens} tokens, less than one batch of {batch.sequences} × {batch.length} "
            f"= {batch.sequences * batch.length}",
            remedy="Give more text, or lower batch.sequences or batch.length",
        )
