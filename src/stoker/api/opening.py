"""Makes a run ready to start: prepares its data, and creates its directory or checks that an existing one matches."""

import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stoker.api.source_models import SourceModel, check_tokenizer, keep_checkpoints, resolve, resolved_before
from stoker.data.any_set import AnySet
from stoker.data.bert.pairs import Pairs, PairSet
from stoker.data.files import covers, exists
from stoker.data.location import token_folder
from stoker.data.mixture import Mixture
from stoker.data.prepare import PrepareProgress, ignore, is_prepared
from stoker.data.remote import is_remote
from stoker.data.remote.transfer import RemoteError
from stoker.data.sets import is_set, open_set, set_of
from stoker.rundir import DataRef, Exit, RunDir, consent
from stoker.rundir.checkpoint import TrainingState
from stoker.rundir.commands import require_local
from stoker.rundir.events import Changed, Note
from stoker.rundir.resume_point import checkpoints_lost, last_saved_step
from stoker.rundir.state import RunState
from stoker.spec import contract
from stoker.spec.change import Changes, difference
from stoker.spec.code import check_code, is_code
from stoker.spec.derive import Derived, derive
from stoker.spec.errors import UserError
from stoker.spec.files import MAX_TEXT_BYTES, read_regular
from stoker.spec.run import AnySpec, RunSpec, ScriptSpec
from stoker.storage.mirror import pull, run_dir
from stoker.storage.store import StoreError

VOCAB_ROUNDING = 128  # a vocabulary may be padded up to a multiple of this, for the matrix units


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """A run that is ready to start, or is done."""

    run: RunDir
    spec: AnySpec
    done: Exit | None
    """How it ended, when there is nothing left to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenedTraining(Opened):
    """A run that trains a model, not a script."""

    spec: RunSpec
    tokens: AnySet
    derived: Derived


def begin(
    spec: AnySpec,
    *,
    runs: Path,
    progress: Callable[[PrepareProgress], None] = ignore,
    creating: Callable[[], None] = lambda: None,
) -> Opened:
    """Prepare the data and create the run, or open the existing one if its spec is the same.

    `creating` is called before the first file of a new run is written, when no other command can create it any more.
    """
    run = RunDir(runs / spec.name)
    if spec.on.is_here:
        require_local(run)  # the checkpoints of a cluster's run are on its volume: here it would start from step 0
    pull(run, resume=None if isinstance(spec, ScriptSpec) else spec.checkpoint.resume)
    _refuse_another_kind(run, spec)
    opened = (
        _begin_script(spec, run, creating)
        if isinstance(spec, ScriptSpec)
        else _begin_training(spec, run, progress, creating)
    )
    consent.record(run, opened.spec)  # a launch without consent was refused before
    return opened


def _begin_script(spec: ScriptSpec, run: RunDir, creating: Callable[[], None]) -> Opened:
    if spec.on.copies_code:  # else the image has it
        _check_script(Path(spec.script))
    if not run.exists():
        _create(run, spec, creating)
        return Opened(run=run, spec=spec, done=None)
    with run.lock():
        changes = difference(run.any_spec(), spec)
        if changes.refused or changes.data:
            raise _another_run(run, changes.refused | changes.data)
        _apply(run, spec, changes.allowed)
        exit = run.exit()
        done = exit if exit and exit.state == RunState.DONE else None
        if not done:
            run.clear_exit()
        return Opened(run=run, spec=spec, done=done)


def _begin_training(
    spec: RunSpec, run: RunDir, progress: Callable[[PrepareProgress], None], creating: Callable[[], None]
) -> OpenedTraining:
    runs = run.path.parent
    store = runs.absolute() / contract.PREPARED_DIR
    _refuse_inside_data(run, spec)
    _check_own_code(spec)
    if run.exists():
        with run.lock():
            return _existing(run, spec, store, progress)
    spec, origins = resolve(spec, runs=runs)
    tokens = set_of(spec.data, store, pairs=_pairs(spec), progress=progress)
    _check_kind(spec, tokens)
    check_tokenizer(origins, tokens.tokenizer)
    spec = _fill(spec, tokens)
    _check_size(spec, tokens)
    _check_end(spec, tokens)
    _create(run, spec, creating, tokens, origins)
    return _opened(run, spec, tokens, done=None)


def free_name(spec: AnySpec, runs: Path) -> AnySpec:
    """The same spec under a name that no run has yet: NAME, NAME-2, NAME-3 …"""
    name, number = spec.name, 1
    while run_dir(runs / name).exists():
        number += 1
        name = f"{spec.name}-{number}"
    return spec.model_copy(update={"name": name})


def _existing(run: RunDir, spec: RunSpec, store: Path, progress: Callable[[PrepareProgress], None]) -> OpenedTraining:
    old = run.spec()
    spec = resolved_before(spec, old)
    changes = difference(old, spec)
    if changes.refused:
        raise _another_run(run, changes.refused)
    kept = None if changes.data else _kept(run, spec)
    reason = f"{', '.join(spec.data.paths)} is gone"
    try:
        tokens = kept or set_of(spec.data, store, pairs=_pairs(spec), progress=progress)
    except (RemoteError, StoreError) as e:
        kept, reason = None if changes.data else _original_tokens(run), e.problem
        if kept is None:
            raise
        tokens = kept
    if tokens.key != run.data().key:
        raise _another_run(run, changes.data or {"data": ("what the files held when it started", "what they hold now")})
    _check_vocab(run, old, tokens)
    spec = _fill(spec, tokens).model_copy(update={"name": old.name})
    _check_end(spec, tokens)
    opened = _opened(run, spec, tokens, done=_done(run, spec, tokens, changes.allowed))
    if not opened.done and spec.on.is_here:  # otherwise the checkpoints are on another machine
        _refuse_loss(run, spec)
    _apply(run, spec, changes.allowed)
    if run.data().shards != str(tokens.path.absolute()):  # started on another machine, or moved since
        run.write_data(_ref(tokens))
    if not opened.done:
        run.clear_exit()
    if kept and not opened.done and not any(map(is_code, spec.data.paths)):
        run.add_event(Note(text=f"{reason}: the run resumes with the tokens made of it, in {kept.path}"))
    return opened


def _refuse_loss(run: RunDir, spec: RunSpec) -> None:
    """Refuse to train from step 0 again when all checkpoints are missing. exit.json may be the only record of them."""
    resume = spec.checkpoint.resume
    if resume == "auto" and not run.saved() and (step := last_saved_step(run, resume)):
        raise checkpoints_lost(run, step, f"{run.checkpoints} has none with a manifest", resume)


def _apply(run: RunDir, spec: AnySpec, changes: Changes) -> None:
    if changes:
        run.write_spec(spec)
        run.add_event(Changed(changes={key: list(values) for key, values in changes.items()}))


def _kept(run: RunDir, spec: RunSpec) -> AnySet | None:
    """The token set of the run's start, if its text cannot be read again: deleted, or from a function."""
    paths = spec.data.paths
    if any(is_remote(path) or exists(path) for path in paths) and not any(map(is_code, paths)):
        return None
    return _original_tokens(run)


def _original_tokens(run: RunDir) -> AnySet | None:
    """The token set that the run started with, if it still exists."""
    folder = token_folder(run)
    if not is_set(folder):
        return None
    tokens = open_set(folder)
    return tokens if tokens.key == run.data().key else None


def _check_own_code(spec: RunSpec) -> None:
    """Check the code that the workers import. A function that yields texts is imported when the data is prepared."""
    if is_code(spec.model.family):
        check_code(spec.model.family, "model.family")
    for callback in spec.callbacks:
        check_code(callback, "callbacks")


def _refuse_another_kind(run: RunDir, spec: AnySpec) -> None:
    if run.exists() and type(old := run.any_spec()) is not type(spec):
        kinds = [f"script {kind.script}" if isinstance(kind, ScriptSpec) else "a model" for kind in (old, spec)]
        raise _another_run(run, {"what it runs": (kinds[0], kinds[1])})


def _check_script(script: Path) -> None:
    """Check what can be checked without running it."""
    try:
        with warnings.catch_warnings(action="ignore"):  # about the script's style
            compile(read_regular(script, max_bytes=MAX_TEXT_BYTES), str(script), "exec")
    except OSError as e:
        raise UserError(f"script {script} cannot be read: {e.strerror}", remedy="Check the path") from e
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:  # the last two: nested too deeply
        where = f":{e.lineno}" if isinstance(e, SyntaxError) else ""
        raise UserError(
            f"script {script}{where} is not Python: {e.args[0] if e.args else type(e).__name__}",
            remedy=f"Try it with: python {script}",
        ) from e


def _refuse_inside_data(run: RunDir, spec: RunSpec) -> None:
    """The run's own files must not become its data: it could never resume."""
    if is_prepared(spec.data):
        return
    written = (
        *(run.path / name for name in (contract.SPEC_FILE, contract.DATA_FILE, contract.METRICS_FILE)),
        *(run.log(0), run.ledger / "attempt-0001-rank-0000.jsonl", run.checkpoint(1) / contract.MANIFEST_FILE),
    )
    for path in spec.data.paths:
        if not is_remote(path) and any(covers(path, file) for file in written):
            raise UserError(
                f"the run's folder {run.path} is inside its data {path}, so its own files would become data",
                remedy="Keep runs in another folder with --runs DIR, or name the text more narrowly in data.path",
            )


def _done(run: RunDir, spec: RunSpec, tokens: AnySet, changed: Changes) -> Exit | None:
    """A run that is done stays done until `until` is raised, or it is resumed from an earlier step."""
    exit = run.exit()
    if exit is None or exit.state != RunState.DONE or "checkpoint.resume" in changed:
        return None
    if not any(key.startswith("until.") for key in changed):
        return exit
    steps = _derived(run, spec, tokens).steps
    return exit if steps is not None and steps <= (exit.step or 0) else None


def _opened(run: RunDir, spec: RunSpec, tokens: AnySet, *, done: Exit | None) -> OpenedTraining:
    derived = _derived(run, spec, tokens)
    return OpenedTraining(run=run, spec=spec, tokens=tokens, derived=derived, done=done)


def _derived(run: RunDir, spec: RunSpec, tokens: AnySet) -> Derived:
    saved = run.saved()
    state = saved[-1].manifest.state if saved else TrainingState()
    return derive(
        spec,
        samples=tokens.train.samples(spec.batch.length),
        horizon=state.horizon,
        step=state.progress.step,
        drawn=state.progress.drawn,
    )


def _another_run(run: RunDir, changes: Changes) -> UserError:
    shown = ", ".join(f"{key}: {old} -> {new}" for key, (old, new) in changes.items())
    return UserError(
        f"run '{run.name}' in {run.path} was started with another spec ({shown})",
        remedy="Undo the change to resume that run, or start another with --new",
    )


def _create(
    run: RunDir,
    spec: AnySpec,
    creating: Callable[[], None],
    tokens: AnySet | None = None,
    origins: dict[str, SourceModel] | None = None,
) -> None:
    try:
        run.path.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise UserError(
            f"cannot create {run.path}: {e.strerror}", remedy="Choose another folder with --runs DIR"
        ) from e
    with run.lock():
        if run.exists():
            raise UserError(f"run '{run.name}' was just started by another command", remedy="Start another with --new")
        creating()
        if tokens is not None:
            _copy_tokenizer(tokens, run)
        if origins:
            run.write_origins(keep_checkpoints(run, origins))
        run.create(spec, _ref(tokens) if tokens else None)


def _copy_tokenizer(tokens: AnySet, run: RunDir) -> None:
    if tokens.tokenizer.is_dir():  # HDF5 files may come without one
        shutil.copytree(tokens.tokenizer, run.tokenizer, dirs_exist_ok=True)


def _pairs(spec: RunSpec) -> Pairs | None:
    """Settings of the sentence pairs for a masked model."""
    return Pairs(length=spec.batch.length, vocab=spec.model.vocab) if spec.model.masked else None


def _check_kind(spec: RunSpec, tokens: AnySet) -> None:
    if spec.model.masked == isinstance(tokens, PairSet):
        return
    kind, needed_kind = ("sentence pairs", "tokens") if isinstance(tokens, PairSet) else ("tokens", "sentence pairs")
    raise UserError(
        f"{tokens.path} holds {kind}, and model.family {spec.model.family} is trained on {needed_kind}",
        remedy="Name the text itself in data.path, or use a model of the other kind",
    )


def _ref(tokens: AnySet) -> DataRef:
    return DataRef(shards=str(tokens.path.absolute()), key=tokens.key)


def _fill(spec: RunSpec, tokens: AnySet) -> RunSpec:
    """Set the model's vocabulary: that of the tokenizer, unless the spec names a slightly larger one."""
    largest = _largest_vocab(tokens)
    vocab = spec.model.vocab or tokens.vocab
    if not tokens.vocab <= vocab <= largest:
        raise UserError(
            f"model.vocab is {vocab}, but the tokenizer has {tokens.vocab} tokens",
            remedy=f"Leave model.vocab out (null, if a preset sets it), or set it from {tokens.vocab} to {largest}",
        )
    return spec.model_copy(update={"model": spec.model.model_copy(update={"vocab": vocab})})


def _largest_vocab(tokens: AnySet) -> int:
    return -(-tokens.vocab // VOCAB_ROUNDING) * VOCAB_ROUNDING


def _check_vocab(run: RunDir, spec: RunSpec, tokens: AnySet) -> None:
    """Check the vocabulary in spec.yaml, which the workers read: it may have been edited."""
    vocab = spec.model.vocab
    if vocab is None or not tokens.vocab <= vocab <= _largest_vocab(tokens):
        raise UserError(
            f"{run.path / contract.SPEC_FILE} has been changed: model.vocab is {vocab}, but the tokenizer has "
            f"{tokens.vocab} tokens",
            remedy=f"Set it back to {tokens.vocab}, or to the value before",
        )


def _check_size(spec: RunSpec, tokens: AnySet) -> None:
    batch = spec.batch
    samples = tokens.train.samples(batch.length)
    if isinstance(tokens, Mixture):
        for source, count in zip(tokens.sources, tokens.train.counts(batch.length), strict=True):
            if not count:
                raise UserError(
                    f"{source.name} has {source.tokens.train.tokens} tokens, less than one sequence of {batch.length}",
                    remedy="Leave it out of data.mix, or lower batch.length",
                )
    if not tokens.whole:
        return
    if samples < batch.sequences and isinstance(tokens, PairSet):
        raise UserError(
            f"the data has {samples} sentence pairs, less than one batch of {batch.sequences}",
            remedy="Give more text, or lower batch.sequences",
        )
    if samples < batch.sequences:
        raise UserError(
            f"the data has {tokens.train.tokens} tokens, less than one batch of {batch.sequences} × {batch.length} "
            f"= {batch.sequences * batch.length}",
            remedy="Give more text, or lower batch.sequences or batch.length",
        )


def _check_end(spec: RunSpec, tokens: AnySet) -> None:
    if spec.until.epochs and not tokens.whole:
        raise UserError(
            "until.epochs cannot be counted in a stream whose end is not known yet",
            remedy="Set until.steps or until.tokens instead",
        )
