"""Existing models that a run uses: the weights it starts from (`init`), and the teacher of a distillation.

They are checked before anything is created, from config.json, spec.yaml and tokenizers alone: no torch.
"""

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from stoker.api.checkpoint_link import link_checkpoint
from stoker.data.any_set import open_prepared
from stoker.data.prepare import is_prepared
from stoker.data.tokenizer import TokenizerError, has_tokenizer, load_folder
from stoker.data.tokenizer import load as load_tokenizer
from stoker.observe.runs import find_or_none, not_found
from stoker.rundir import OriginRef, RunDir, Saved, consent
from stoker.rundir.checkpoint import other_shape
from stoker.rundir.commands import require_local
from stoker.spec import contract, hf_config
from stoker.spec.data import Data
from stoker.spec.errors import UserError
from stoker.spec.model import Model
from stoker.spec.problems import explain_problem
from stoker.spec.run import AnySpec, RunSpec, ScriptSpec
from stoker.storage.mirror import run_dir


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceModel:
    """An existing model: a checkpoint of a run, or a folder that transformers wrote."""

    ref: OriginRef
    shape: Model
    tokenizer: Path | None
    is_exact: bool = True
    """The user named this checkpoint. Otherwise it is the newest of a run, and a newer one may replace it."""


def resolve(spec: RunSpec, *, runs: Path) -> tuple[RunSpec, dict[str, SourceModel]]:
    """The spec with the values that it takes from its source models, and these by name: `init`, `teacher`.

    Raises UserError if a model does not fit the spec.
    """
    names = {"init": spec.init.path, "teacher": spec.objective.teacher}
    sources = {role: _open(name, runs, key=_key(role)) for role, name in names.items() if name}
    model = spec.model
    if init := sources.get("init"):
        model = _shape(spec, init)
    vocab = next((source.shape.vocab for source in sources.values()), None)
    if vocab and model.vocab is None:
        model = model.model_copy(update={"vocab": vocab})
    data = spec.data
    if data.tokenizer is None and not is_prepared(data):
        tokenizer = next((source.tokenizer for source in sources.values() if source.tokenizer), None)
        data = data.model_copy(update={"tokenizer": str(tokenizer)}) if tokenizer else data
    spec = _validated(spec, model, data)
    for role, source in sources.items():
        _check(spec, role, source)
    return spec, sources


def resolved_before(spec: RunSpec, old: RunSpec) -> RunSpec:
    """The spec of a resumed run, with the values that it took from its source models when it started."""
    if spec.init.path is None and spec.objective.teacher is None:
        return spec
    model = old.model if "model" not in spec.model_fields_set else spec.model
    if model.vocab is None:
        model = model.model_copy(update={"vocab": old.model.vocab})
    tokenizer = spec.data.tokenizer or old.data.tokenizer
    data = spec.data.model_copy(update={"tokenizer": tokenizer})
    return _validated(spec, model, data)


def resolved(spec: AnySpec, *, runs: Path) -> AnySpec:
    """The spec with the values that it takes from its source models, for a plan. Creates nothing."""
    if isinstance(spec, ScriptSpec) or (spec.init.path is None and spec.objective.teacher is None):
        return spec
    run = run_dir(runs / spec.name)
    if not run.exists():
        return resolve(spec, runs=runs)[0]
    old = run.any_spec()
    return spec if isinstance(old, ScriptSpec) else resolved_before(spec, old)


def teacher_shape(spec: RunSpec, run: RunDir) -> Model | None:
    """For an existing run, the shape of the teacher that it holds; None if that was deleted, which the run reports."""
    if spec.objective.teacher is None:
        return None
    existing = run_dir(run.path)
    if not existing.exists():
        return _open(spec.objective.teacher, run.path.parent, key=_key("teacher")).shape
    kept = RunDir(run.origin_folder("teacher"))
    if kept.exists():
        return kept.spec().model
    ref = existing.origins().get("teacher")
    if ref is None:
        return None
    folder = Path(ref.path)
    if ref.step is None:
        return hf_config.read_shape(folder) if (folder / hf_config.CONFIG_FILE).is_file() else None
    teacher = run_dir(folder)
    return teacher.spec().model if teacher.exists() else None


def known_vocab(data: Data) -> int | None:
    """The size of the tokenizer that the data names; None if it names none, or it cannot be loaded yet."""
    if is_prepared(data):
        return open_prepared(Path(data.paths[0])).vocab
    if isinstance(data.tokenizer, str):
        with suppress(TokenizerError):  # reported when it is used: a resumed run does not need it
            return load_tokenizer(data.tokenizer).vocab
    return None


def check_tokenizer(sources: dict[str, SourceModel], tokenizer: Path) -> None:
    """A token id must mean the same to all models: the weights do not say what it stands for."""
    for role, source in sources.items():
        if source.tokenizer is None or not has_tokenizer(tokenizer):
            continue
        folders = (tokenizer, source.tokenizer)
        data_vocabulary, vocabulary = (load_folder(folder).tokenizer.get_vocab() for folder in folders)
        if vocabulary != data_vocabulary:
            raise UserError(
                f"{_key(role)} {source.ref.path} has another vocabulary ({len(vocabulary)} tokens) than the data "
                f"({len(data_vocabulary)})",
                remedy=f"Set data.tokenizer to {source.tokenizer}",
            )


def keep_checkpoints(run: RunDir, sources: dict[str, SourceModel]) -> dict[str, OriginRef]:
    """Keep the checkpoints of other runs, which delete old ones as they train, for as long as this run exists."""
    return {role: _keep_checkpoint(source, run.origin_folder(role), key=_key(role)) for role, source in sources.items()}


def _keep_checkpoint(source: SourceModel, folder: Path, *, key: str) -> OriginRef:
    if source.ref.step is None:  # a folder of transformers, which no run deletes
        return source.ref
    run, copy = run_dir(Path(source.ref.path)), RunDir(folder)
    shutil.rmtree(folder, ignore_errors=True)  # left by a command that was killed here
    deleted: set[str] = set()
    while existing := [saved for saved in run.saved() if saved.key not in deleted]:
        newest = None if source.is_exact else existing[-1]
        saved = next((saved for saved in existing if saved.key == source.ref.key), newest)
        if saved is None:
            break
        run.fetch(saved)
        if link_checkpoint(saved, copy.checkpoint(saved.step)):
            copy.write_spec(run.spec())
            return replace(source.ref, step=saved.step, key=saved.key)
        if (saved.path / contract.MANIFEST_FILE).exists():
            raise UserError(f"{key}: the checkpoint {saved.path} is damaged", remedy="Name another one's folder")
        deleted.add(saved.key)
    raise UserError(f"{key} {source.ref.path}, step {source.ref.step}, was deleted", remedy="Name another checkpoint")


def _validated(spec: RunSpec, model: Model, data: Data) -> RunSpec:
    """Validate the spec again: its sections must agree with the final model, too."""
    values = spec.model_copy(update={"model": model, "data": data}).model_dump(mode="json", exclude_unset=True)
    try:
        return RunSpec.model_validate(values)
    except ValidationError as e:
        raise explain_problem(e, {}, Path(spec.init.path) if spec.init.path else None) from e


def _key(role: str) -> str:
    """The key of the run file that names it."""
    return {"init": "init.path", "teacher": "objective.teacher"}[role]


def _open(name: str, runs: Path, *, key: str) -> SourceModel:
    folder = Path(os.path.expanduser(name))
    if (folder / contract.MANIFEST_FILE).is_file():
        return _of_checkpoint(folder.absolute())
    if (folder / hf_config.CONFIG_FILE).is_file() and not run_dir(folder).exists():
        shape = hf_config.read_shape(folder)
        tokenizer = folder.absolute() if has_tokenizer(folder) else None
        ref = OriginRef(path=str(folder.absolute()), step=None, key=hf_config.identity(folder))
        return SourceModel(ref=ref, shape=shape, tokenizer=tokenizer)
    run = find_or_none(name, runs)
    if run is None:
        error = not_found(name, runs)
        raise UserError(
            f"{key}: {error.problem}, and no folder with {hf_config.CONFIG_FILE} of that name", remedy=error.remedy
        )
    require_local(run)
    saved = run.saved()
    if not saved:
        raise UserError(f"{key}: run '{run.name}' has no checkpoint yet", remedy="Wait for its first one")
    return _of_run(run, saved[-1], is_exact=False)


def _of_run(run: RunDir, saved: Saved, *, is_exact: bool) -> SourceModel:
    spec = run.spec()
    consent.require(run, consent.model_code(spec))
    if difference := other_shape(saved.manifest, spec.model):
        raise UserError(
            f"{run.path / contract.SPEC_FILE} has been changed: {difference}", remedy="Restore it as the run wrote it"
        )
    ref = OriginRef(path=str(run.path.absolute()), step=saved.step, key=saved.key)
    tokenizer = run.tokenizer.absolute() if has_tokenizer(run.tokenizer) else None
    return SourceModel(ref=ref, shape=spec.model, tokenizer=tokenizer, is_exact=is_exact)


def _of_checkpoint(folder: Path) -> SourceModel:
    run = RunDir(folder.parent.parent)
    saved = next((saved for saved in run.saved() if saved.path.name == folder.name), None) if run.exists() else None
    if saved is None:
        raise UserError(
            f"the checkpoint {folder} is not in the folder of its run", remedy="Move it back, or name the run"
        )
    return _of_run(run, saved, is_exact=True)


def _shape(spec: RunSpec, init: SourceModel) -> Model:
    """The shape of the new model: the spec's, or that of the weights if the spec names none."""
    if "model" in spec.model_fields_set:
        return spec.model
    chosen = spec.init.layers
    return init.shape.model_copy(update={"layers": len(chosen)} if chosen else {})


def _check(spec: RunSpec, role: str, source: SourceModel) -> None:
    key, shape, source_shape = _key(role), spec.model, source.shape
    if source_shape.masked != shape.masked:
        kinds = ["masked words" if model.masked else "the next token" for model in (source_shape, shape)]
        raise UserError(
            f"{key} {source.ref.path} predicts {kinds[0]}, and a {shape.family} predicts {kinds[1]}",
            remedy="Name a model that predicts the same",
        )
    if source_shape.vocab != shape.vocab:
        raise UserError(
            f"{key} {source.ref.path} has an embedding of {source_shape.vocab} tokens, "
            f"and model.vocab is {shape.vocab}",
            remedy="Leave model.vocab out",
        )
    if role == "teacher":
        if source_shape.context < spec.batch.length:
            raise UserError(
                f"{key} {source.ref.path} reads {source_shape.context} tokens at most, and batch.length is "
                f"{spec.batch.length}",
                remedy=f"Set batch.length to {source_shape.context} or less",
            )
        return
    layers = spec.init.blocks(source_shape.layers, shape.layers)
    if len(layers) != shape.layers or len(set(layers)) != len(layers) or max(layers) >= source_shape.layers:
        raise UserError(
            f"init takes layers {layers} of {source_shape.layers}, and model.layers is {shape.layers}",
            remedy=f"Name {shape.layers} different layers from 0 to {source_shape.layers - 1} in init.layers",
        )
    for field, value in shape.model_dump().items():
        if field not in ("layers", "dropout", "init_std", "vocab") and value != getattr(source_shape, field):
            raise UserError(
                f"model.{field} is {value}, and {key} {source.ref.path} has {getattr(source_shape, field)}",
                remedy="Leave model out: it is taken from there",
            )
