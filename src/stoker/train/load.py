"""Any model, ready to be used: of a run, of a checkpoint, or of a folder in the form of transformers.

    load_model(path, *, step: int | "newest" | "best" = "newest", device="auto", trust=False) -> LoadedModel

Only the model's tensors are read from a checkpoint, straight into the model: the optimizer's are never held. A run may
be written meanwhile: a checkpoint that is pruned under the reader is passed over for what is newest then.
"""

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException

from stoker.data.tokenizer import LoadedTokenizer, has_tokenizer, load_folder
from stoker.rundir import RunDir, Saved, consent
from stoker.rundir.checkpoint import Manifest, damage, other_shape, read_manifest
from stoker.rundir.elsewhere import refuse_elsewhere
from stoker.spec import contract, forms, sizes
from stoker.spec.errors import UserError
from stoker.spec.model import Model
from stoker.spec.trust import trusting
from stoker.storage.mirror import run_dir
from stoker.train.models import MODELS, hf, model_spec, weights
from stoker.train.reader import Untrusted, read_tensors

Step = int | Literal["newest", "best"]

PRUNED = "it was pruned just now"


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedModel:
    model: nn.Module
    """In eval mode, fp32, on the device asked for."""
    shape: Model
    """Its numbers; `vocab` is set."""
    tokenizer: Path | None
    """A folder that `stoker.data.tokenizer.load_folder` reads."""
    origin: str
    """Where it came from, in words for people."""
    run: RunDir | None = None
    step: int | None = None

    def read_tokenizer(self) -> LoadedTokenizer:
        """Its tokenizer, or a word on what is missing."""
        if self.tokenizer is None:
            where = self.run.tokenizer if self.run else "it"
            raise UserError(
                f"{self.origin} has no tokenizer",
                remedy=f"Put the tokenizer.json that it was trained with into {where}",
            )
        return load_folder(self.tokenizer)


def load_model(path: Path, *, step: Step = "newest", device: str = "auto", trust: bool = False) -> LoadedModel:
    """`path` is a run's folder, a checkpoint's (…/checkpoints/step-000000100), or one that transformers wrote.

    Code that the run names as `model.family` is imported if this user launched the run there, or with `trust`.
    """
    with trusting(trust):
        return _load(path, step, _device(device))


def _load(path: Path, step: Step, place: torch.device) -> LoadedModel:
    if (path / contract.SPEC_FILE).is_file():
        return _from_run(run_dir(path), step, place)
    if step != "newest" and path.is_dir():
        raise UserError(f"{path} is no run, so it has no step {step}", remedy="Leave --step out, or name the run")
    if (path / contract.MANIFEST_FILE).is_file():
        return _from_checkpoint(path, place)
    if (path / forms.CONFIG_FILE).is_file():
        shape = forms.read_shape(path)
        try:
            check_size(shape, hf.weight_bytes(path), said_by=path / forms.CONFIG_FILE, weights=path)
        except UserError:
            for _ in hf.tensors(path):  # a file that is no tensors is the better reason
                pass
            raise
        model = _empty(shape, place)
        hf.read_weights(path, shape, model)
        return LoadedModel(model=model, shape=shape, tokenizer=_tokenizer(path), origin=f"the folder {path}")
    if not path.is_dir():
        raise UserError(f"there is no folder {path}", remedy="Name a run, a checkpoint, or a folder with config.json")
    raise UserError(
        f"{path} holds no model: there is no {contract.SPEC_FILE} (a run), {contract.MANIFEST_FILE} (a checkpoint) "
        f"or {forms.CONFIG_FILE} (a model of transformers)",
        remedy="Name one of these",
    )


def _from_run(run: RunDir, step: Step, place: torch.device) -> LoadedModel:
    refuse_elsewhere(run)
    shape = _shape(run)
    passed_over: dict[int, str] = {}
    while saved := _choose(run, step, passed_over):
        run.fetch(saved)
        try:
            why = damage(saved.path)
            if why and not (saved.path / contract.MANIFEST_FILE).exists():
                why = PRUNED
            model = None if why else _read(saved.path, saved.manifest, shape, place)
        except FileNotFoundError:
            why, model = PRUNED, None
        if model is not None:
            damaged = [item for item in passed_over.items() if item[1] != PRUNED]
            notes = "".join(f"; step {number} was passed over: {reason}" for number, reason in damaged)
            return LoadedModel(
                model=model,
                shape=shape,
                tokenizer=_tokenizer(run.tokenizer),
                origin=f"run '{run.name}', step {saved.step}{notes}",
                run=run,
                step=saved.step,
            )
        passed_over[saved.step] = why or ""
    if passed_over:
        number, reason = next(iter(passed_over.items()))
        raise UserError(
            f"no checkpoint of run '{run.name}' can be read; that of step {number}: {reason}",
            remedy=f"Restore it under {run.checkpoints}",
        )
    unlisted = max(run.checkpoints.glob(contract.CHECKPOINT_GLOB), default=None)
    if unlisted:
        raise UserError(
            f"no checkpoint of run '{run.name}' can be read; that in {unlisted}: {_problem(unlisted)}",
            remedy="Restore it as the run wrote it",
        )
    raise UserError(
        f"run '{run.name}' has no checkpoint yet",
        remedy=f"Wait for the first one; see: stoker status {run.path}",
    )


def _problem(folder: Path) -> str:
    """Why a folder is not listed as a checkpoint."""
    try:
        return damage(folder) or f"{contract.MANIFEST_FILE} was not there a moment ago"
    except OSError:
        return f"{contract.MANIFEST_FILE} is missing"


def _choose(run: RunDir, step: Step, passed_over: dict[int, str]) -> Saved | None:
    """The next to try, or None; read anew each time, for a live run goes on saving and pruning."""
    there = run.saved()
    if step == "newest" or not there:
        return next((saved for saved in reversed(there) if saved.step not in passed_over), None)
    wanted = _best(run, there[-1]) if step == "best" else step
    if wanted in passed_over:
        return None
    found = next((saved for saved in there if saved.step == wanted), None)
    if found is None:
        steps = ", ".join(str(saved.step) for saved in there)
        raise UserError(f"run '{run.name}' has no checkpoint of step {wanted}", remedy=f"There are: {steps}")
    return found


def _best(run: RunDir, newest: Saved) -> int:
    best: int | None = newest.manifest.state.progress.best_step
    if best is None:
        raise UserError(
            f"run '{run.name}' has had no evaluation, so none of its checkpoints is the best",
            remedy="Leave --step out for the newest, or set eval.every and data.validation above 0",
        )
    return best


def _from_checkpoint(path: Path, place: torch.device) -> LoadedModel:
    path = path.resolve()  # a link that the user names is theirs; one inside a checkpoint is refused
    run = RunDir(path.parent.parent)
    if not run.exists():
        raise UserError(
            f"the checkpoint {path} lies apart from its run, whose {contract.SPEC_FILE} says what model it is of",
            remedy=f"Put it back under RUN/{contract.CHECKPOINTS_DIR}, or name the run and --step",
        )
    shape = _shape(run)
    try:
        why = damage(path)
        model = None if why else _read(path, read_manifest(path), shape, place)
    except FileNotFoundError:
        why, model = PRUNED, None
    if model is None:
        raise UserError(f"the checkpoint {path} cannot be read: {why}", remedy="Restore it, or name another")
    name = path.name.removeprefix("step-")
    step = int(name) if name.isdecimal() else None
    return LoadedModel(
        model=model,
        shape=shape,
        tokenizer=_tokenizer(run.tokenizer),
        origin=f"run '{run.name}', step {step}" if step is not None else f"the checkpoint {path}",
        run=run,
        step=step,
    )


def _read(path: Path, manifest: Manifest, shape: Model, place: torch.device) -> nn.Module:
    spec = path.parent.parent / contract.SPEC_FILE
    if difference := other_shape(manifest, shape):
        raise UserError(f"{spec} has been changed: {difference}", remedy="Restore it as the run wrote it")
    check_size(shape, sum(file.bytes for file in manifest.files.values()), said_by=spec, weights=path)
    model = _empty(shape, place)
    read_checkpoint(path, weights(model))
    return model


def check_size(shape: Model, size: int, *, said_by: Path, weights: Path) -> None:
    """Before memory is asked for: a weight takes a byte at least, so the files bound the model that they can hold."""
    parameters = sizes.parameters(shape, shape.vocab or 0) if shape.family in MODELS else 0
    if parameters > size:
        raise UserError(
            f"{said_by} describes a model of {parameters:,} parameters, and {weights} has {size:,} bytes of weights",
            remedy="Restore them as they were written",
        )


def read_checkpoint(path: Path, wanted: Mapping[str, Tensor]) -> None:
    """Fill these tensors of a model. Raises FileNotFoundError when the checkpoint vanishes meanwhile."""
    tensors = {"model": dict(wanted)}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is no process group: none is meant
            read_tensors(tensors, path, alone=True)
    except CheckpointException as e:
        if not (path / contract.MANIFEST_FILE).exists():
            raise FileNotFoundError(path) from e
        error = next(failure[0] for failure in e.failures.values())
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if isinstance(error, Untrusted):
            raise UserError(
                f"the checkpoint {path} cannot be read: {reason}", remedy="Restore it as its run wrote it"
            ) from e
        raise UserError(
            f"the checkpoint {path} does not fit the model of its run: {reason}",
            remedy=f"Restore {contract.SPEC_FILE} as the run wrote it",
        ) from e


def _empty(shape: Model, place: torch.device) -> nn.Module:
    """A model of that shape, its weights yet to be read."""
    family = model_spec(shape.family)
    if shape.family in MODELS:  # ours have nothing but weights: drawing initial ones would be for nothing
        with torch.device("meta"):
            model = family.build(shape)
        model = model.to_empty(device=place)
    else:
        model = family.build(shape).to(place)
    return model.float().eval()


def _shape(run: RunDir) -> Model:
    spec = run.spec()
    consent.require(run, consent.model_code(spec))
    shape = spec.model
    if shape.vocab is None:
        raise UserError(
            f"{run.path / contract.SPEC_FILE} does not say model.vocab", remedy="Set it to the tokenizer's size"
        )
    return shape


def _tokenizer(folder: Path) -> Path | None:
    return Path(os.path.abspath(folder)) if has_tokenizer(folder) else None


def _device(word: str) -> torch.device:
    if word == "auto":
        word = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        place = torch.device(word)
    except RuntimeError as e:
        raise UserError(f"'{word}' is no device", remedy="Give cpu, cuda or auto") from e
    if place.type == "cuda" and not torch.cuda.is_available():
        raise UserError("there is no GPU here that torch can use", remedy="Leave the device out, or give cpu")
    return place
