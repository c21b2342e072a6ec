"""What a run takes from other models: the weights it begins with, and the teacher it learns from.

Looked at before anything is made, from config.json, spec.yaml and tokenizers alone: no torch.
"""

import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from stoker.api.borrow import borrow
from stoker.data.pairs import open_plain
from stoker.data.prepare import is_prepared
from stoker.data.tokenizer import has_tokenizer, load_folder
from stoker.data.tokenizer import load as load_tokenizer
from stoker.observe.runs import find
from stoker.rundir import OriginRef, RunDir, Saved, consent
from stoker.rundir.checkpoint import other_shape
from stoker.rundir.elsewhere import refuse_elsewhere
from stoker.spec import contract, forms
from stoker.spec.data import Data
from stoker.spec.errors import UserError
from stoker.spec.model import Model
from stoker.spec.problems import explain_problem
from stoker.spec.run import AnySpec, RunSpec, ScriptSpec
from stoker.storage.mirror import run_dir


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """A model that is there already."""

    ref: OriginRef
    shape: Model
    tokenizer: Path | None
    named: bool = True
    """It was named itself, and no other will do: of a run that was named it is the newest checkpoint."""


def settle(spec: RunSpec, *, runs: Path) -> tuple[RunSpec, dict[str, Origin]]:
    """The spec with what it leaves to those models, and these by name: `init`, `teacher`. Refuses what cannot fit."""
    words = {"init": spec.init.path, "teacher": spec.objective.teacher}
    found = {name: _open(word, runs, key=_key(name)) for name, word in words.items() if word}
    model = spec.model
    if init := found.get("init"):
        model = _shape(spec, init)
    vocab = next((origin.shape.vocab for origin in found.values()), None)
    if vocab and model.vocab is None:
        model = model.model_copy(update={"vocab": vocab})
    data = spec.data
    if data.tokenizer is None and not is_prepared(data):
        taken = next((origin.tokenizer for origin in found.values() if origin.tokenizer), None)
        data = data.model_copy(update={"tokenizer": str(taken)}) if taken else data
    spec = _rebuilt(spec, model, data)
    for name, origin in found.items():
        _check(spec, name, origin)
    return spec, found


def as_begun(spec: RunSpec, old: RunSpec) -> RunSpec:
    """The spec of a run that goes on, with what it left to other models when it began: they are not asked again."""
    if spec.init.path is None and spec.objective.teacher is None:
        return spec
    model = old.model if "model" not in spec.model_fields_set else spec.model
    if model.vocab is None:
        model = model.model_copy(update={"vocab": old.model.vocab})
    tokenizer = spec.data.tokenizer or old.data.tokenizer
    data = spec.data.model_copy(update={"tokenizer": tokenizer})
    return _rebuilt(spec, model, data)


def as_asked(spec: AnySpec, *, runs: Path) -> AnySpec:
    """The spec with what it leaves to other models, before anything is made: what it needs can be told from it."""
    if isinstance(spec, ScriptSpec) or (spec.init.path is None and spec.objective.teacher is None):
        return spec
    run = run_dir(runs / spec.name)
    if not run.exists():
        return settle(spec, runs=runs)[0]
    old = run.any_spec()
    return spec if isinstance(old, ScriptSpec) else as_begun(spec, old)


def teacher_shape(spec: RunSpec, run: RunDir) -> Model | None:
    """Of a run that has begun, the teacher that it holds; None too where it is gone, which the run will say."""
    if spec.objective.teacher is None:
        return None
    begun = run_dir(run.path)
    if not begun.exists():
        return _open(spec.objective.teacher, run.path.parent, key=_key("teacher")).shape
    ref = begun.origins().get("teacher")
    held = RunDir(run.held("teacher"))
    with suppress(UserError):
        if held.exists():
            return held.spec().model
        if ref:
            folder = Path(ref.path)
            return forms.read_shape(folder) if ref.step is None else run_dir(folder).spec().model
    return None


def known_vocab(data: Data) -> int | None:
    """As large as the tokenizer that is named; None where that cannot be told yet, and where none is."""
    with suppress(UserError):  # what is wrong with it is told when it is used
        if is_prepared(data):
            return open_plain(Path(data.paths[0])).vocab
        if isinstance(data.tokenizer, str):
            return load_tokenizer(data.tokenizer).vocab
    return None


def check_tokenizer(origins: dict[str, Origin], tokenizer: Path) -> None:
    """Tokens must mean the same to all: what a number stands for is nowhere in the weights."""
    for name, origin in origins.items():
        if origin.tokenizer is None or not has_tokenizer(tokenizer):
            continue
        ours, theirs = (load_folder(folder).tokenizer.get_vocab() for folder in (tokenizer, origin.tokenizer))
        if theirs != ours:
            raise UserError(
                f"{_key(name)} {origin.ref.path} has another vocabulary ({len(theirs)} tokens) than the data "
                f"({len(ours)})",
                remedy=f"Set data.tokenizer to {origin.tokenizer}",
            )


def hold(run: RunDir, origins: dict[str, Origin]) -> dict[str, OriginRef]:
    """Keep the checkpoints of other runs, which prune them as they go on, for as long as this run is there."""
    return {name: _hold(origin, run.held(name), key=_key(name)) for name, origin in origins.items()}


def _hold(origin: Origin, folder: Path, *, key: str) -> OriginRef:
    if origin.ref.step is None:  # a folder of transformers: nobody prunes it
        return origin.ref
    run, held = run_dir(Path(origin.ref.path)), RunDir(folder)
    shutil.rmtree(folder, ignore_errors=True)  # of a command that was killed here
    refused: set[str] = set()
    while there := [saved for saved in run.saved() if saved.key not in refused]:
        saved = next((saved for saved in there if saved.key == origin.ref.key), None if origin.named else there[-1])
        if saved is None:
            break
        run.fetch(saved)
        if borrow(saved, held.checkpoint(saved.step)):
            held.write_spec(run.spec())
            return replace(origin.ref, step=saved.step, key=saved.key)
        if (saved.path / contract.MANIFEST_FILE).exists():
            raise UserError(f"{key}: the checkpoint {saved.path} is damaged", remedy="Name another one's folder")
        refused.add(saved.key)
    raise UserError(f"{key} {origin.ref.path}, step {origin.ref.step}, is gone", remedy="Name another checkpoint")


def _rebuilt(spec: RunSpec, model: Model, data: Data) -> RunSpec:
    """The sections must agree about the model that it will be, too."""
    values = spec.model_copy(update={"model": model, "data": data}).model_dump(mode="json", exclude_unset=True)
    try:
        return RunSpec.model_validate(values)
    except ValidationError as e:
        raise explain_problem(e, {}, Path(spec.init.path) if spec.init.path else None) from e


def _key(name: str) -> str:
    return {"init": "init.path", "teacher": "objective.teacher"}[name]


def _open(word: str, runs: Path, *, key: str) -> Origin:
    folder = Path(word).expanduser()
    if (folder / contract.MANIFEST_FILE).is_file():
        return _of_checkpoint(folder.absolute())
    if (folder / forms.CONFIG_FILE).is_file() and not run_dir(folder).exists():
        shape = forms.read_shape(folder)
        tokenizer = folder.absolute() if has_tokenizer(folder) else None
        ref = OriginRef(path=str(folder.absolute()), step=None, key=forms.identity(folder))
        return Origin(ref=ref, shape=shape, tokenizer=tokenizer)
    try:
        run = find(word, runs)
    except UserError as e:
        raise UserError(
            f"{key}: {e.problem}, and no folder with {forms.CONFIG_FILE} of that name", remedy=e.remedy
        ) from e
    refuse_elsewhere(run)
    saved = run.saved()
    if not saved:
        raise UserError(f"{key}: run '{run.name}' has no checkpoint yet", remedy="Wait for its first one")
    return _of_run(run, saved[-1], named=False)


def _of_run(run: RunDir, saved: Saved, *, named: bool) -> Origin:
    spec = run.spec()
    consent.require(run, consent.model_code(spec))
    if difference := other_shape(saved.manifest, spec.model):
        raise UserError(
            f"{run.path / contract.SPEC_FILE} has been changed: {difference}", remedy="Restore it as the run wrote it"
        )
    ref = OriginRef(path=str(run.path.absolute()), step=saved.step, key=saved.key)
    tokenizer = run.tokenizer.absolute() if has_tokenizer(run.tokenizer) else None
    return Origin(ref=ref, shape=spec.model, tokenizer=tokenizer, named=named)


def _of_checkpoint(folder: Path) -> Origin:
    run = RunDir(folder.parent.parent)
    saved = next((saved for saved in run.saved() if saved.path.name == folder.name), None) if run.exists() else None
    if saved is None:
        raise UserError(f"the checkpoint {folder} lies apart from its run", remedy="Put it back, or name the run")
    return _of_run(run, saved, named=True)


def _shape(spec: RunSpec, init: Origin) -> Model:
    """The model that begins with these weights: theirs where the spec names none."""
    if "model" in spec.model_fields_set:
        return spec.model
    chosen = spec.init.layers
    return init.shape.model_copy(update={"layers": len(chosen)} if chosen else {})


def _check(spec: RunSpec, name: str, origin: Origin) -> None:
    key, ours, theirs = _key(name), spec.model, origin.shape
    if theirs.masked != ours.masked:
        kinds = ["masked words" if shape.masked else "the next token" for shape in (theirs, ours)]
        raise UserError(
            f"{key} {origin.ref.path} predicts {kinds[0]}, and a {ours.family} predicts {kinds[1]}",
            remedy="Name a model that predicts the same",
        )
    if theirs.vocab != ours.vocab:
        raise UserError(
            f"{key} {origin.ref.path} has an embedding of {theirs.vocab} tokens, and model.vocab is {ours.vocab}",
            remedy="Leave model.vocab out",
        )
    if name == "teacher":
        if theirs.context < spec.batch.length:
            raise UserError(
                f"{key} {origin.ref.path} reads {theirs.context} tokens at most, and batch.length is "
                f"{spec.batch.length}",
                remedy=f"Set batch.length to {theirs.context} or less",
            )
        return
    layers = spec.init.taken(theirs.layers, ours.layers)
    if len(layers) != ours.layers or len(set(layers)) != len(layers) or max(layers) >= theirs.layers:
        raise UserError(
            f"init takes layers {layers} of {theirs.layers}, and model.layers is {ours.layers}",
            remedy=f"Name {ours.layers} different layers from 0 to {theirs.layers - 1} in init.layers",
        )
    for field, mine in ours.model_dump().items():
        if field not in ("layers", "dropout", "init_std", "vocab") and mine != getattr(theirs, field):
            raise UserError(
                f"model.{field} is {mine}, and {key} {origin.ref.path} has {getattr(theirs, field)}",
                remedy="Leave model out: it is taken from there",
            )
