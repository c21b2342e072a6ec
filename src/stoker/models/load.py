"""Loads a model for use: from a run, a checkpoint, or a folder in the format of transformers.

    load_model(path, *, step: int | "newest" | "best" = "newest", device="auto", trust=False) -> LoadedModel

Only the model's tensors are read from a checkpoint, straight into the model, and not the optimizer's. The run may be
training meanwhile: when a checkpoint is pruned while it is read, the newest checkpoint at that time is read instead.
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
from stoker.models import MODELS, hf, weights
from stoker.models.build import build, materialise
from stoker.models.checkpoint_reader import Untrusted, read_tensors
from stoker.rundir import RunDir, Saved, consent
from stoker.rundir.checkpoint import CheckpointManifest, damage, other_shape, read_manifest
from stoker.rundir.commands import require_local
from stoker.spec import contract, estimate, hf_config
from stoker.spec.errors import UserError, first_line
from stoker.spec.model import Model
from stoker.spec.trust import trusting
from stoker.storage.mirror import run_dir

Step = int | Literal["newest", "best"]

PRUNED = "it was pruned just now"


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedModel:
    model: nn.Module
    """In eval mode, fp32, on the device asked for."""
    shape: Model
    """Its sizes; `vocab` is set."""
    tokenizer: Path | None
    """A folder that `stoker.data.tokenizer.load_folder` reads."""
    origin: str
    """Where it came from, for messages."""
    run: RunDir | None = None
    step: int | None = None

    def read_tokenizer(self) -> LoadedTokenizer:
        """Its tokenizer; raises a UserError when it has none."""
        if self.tokenizer is None:
            folder = self.run.tokenizer if self.run else "it"
            raise UserError(
                f"{self.origin} has no tokenizer",
                remedy=f"Put the tokenizer.json that it was trained with into {folder}",
            )
        return load_folder(self.tokenizer)


def load_model(path: Path, *, step: Step = "newest", device: str = "auto", trust: bool = False) -> LoadedModel:
    """`path` is the folder of a run, of a checkpoint (…/checkpoints/step-000000100), or in the format of transformers.

    Code that the run names as `model.family` is imported only if this user launched that run, or with `trust`.
    """
    with trusting(trust):
        return _load(path, step, _device(device))


def _load(path: Path, step: Step, device: torch.device) -> LoadedModel:
    if (path / contract.SPEC_FILE).is_file():
        return _from_run(run_dir(path), step, device)
    if step != "newest" and path.is_dir():
        raise UserError(f"{path} is no run, so it has no step {step}", remedy="Leave --step out, or name the run")
    if (path / contract.MANIFEST_FILE).is_file():
        return _from_checkpoint(path, device)
    if (path / hf_config.CONFIG_FILE).is_file():
        shape = hf_config.read_shape(path)
        try:
            check_size(shape, hf.weight_bytes(path), described_by=path / hf_config.CONFIG_FILE, weights=path)
        except WrongSize:
            for _ in hf.tensors(path):  # a file without tensors is the more useful error
                pass
            raise
        model = _empty(shape, device)
        hf.read_weights(path, shape, model)
        return LoadedModel(model=model, shape=shape, tokenizer=_tokenizer(path), origin=f"the folder {path}")
    if not path.is_dir():
        raise UserError(f"there is no folder {path}", remedy="Name a run, a checkpoint, or a folder with config.json")
    raise UserError(
        f"{path} holds no model: there is no {contract.SPEC_FILE} (a run), {contract.MANIFEST_FILE} (a checkpoint) "
        f"or {hf_config.CONFIG_FILE} (a model of transformers)",
        remedy="Name one of these",
    )


def _from_run(run: RunDir, step: Step, device: torch.device) -> LoadedModel:
    require_local(run)
    shape = _shape(run)
    passed_over: dict[int, str] = {}
    while saved := _choose(run, step, passed_over):
        run.fetch(saved)
        try:
            problem = damage(saved.path)
            if problem and not (saved.path / contract.MANIFEST_FILE).exists():
                problem = PRUNED
            model = None if problem else _read(saved.path, saved.manifest, shape, device)
        except FileNotFoundError:
            problem, model = PRUNED, None
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
        passed_over[saved.step] = problem or ""
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
        return damage(folder) or f"{contract.MANIFEST_FILE} was missing a moment ago"
    except OSError:
        return f"{contract.MANIFEST_FILE} is missing"


def _choose(run: RunDir, step: Step, passed_over: dict[int, str]) -> Saved | None:
    """The next checkpoint to try, or None; listed again each time, since a live run keeps saving and pruning."""
    complete = run.saved()
    if step == "newest" or not complete:
        return next((saved for saved in reversed(complete) if saved.step not in passed_over), None)
    wanted = _best(run, complete[-1]) if step == "best" else step
    if wanted in passed_over:
        return None
    chosen = next((saved for saved in complete if saved.step == wanted), None)
    if chosen is None:
        steps = ", ".join(str(saved.step) for saved in complete)
        raise UserError(f"run '{run.name}' has no checkpoint of step {wanted}", remedy=f"There are: {steps}")
    return chosen


def _best(run: RunDir, newest: Saved) -> int:
    best: int | None = newest.manifest.state.progress.best_step
    if best is None:
        raise UserError(
            f"run '{run.name}' has had no evaluation, so none of its checkpoints is the best",
            remedy="Leave --step out for the newest, or set eval.every and data.validation above 0",
        )
    return best


def _from_checkpoint(path: Path, device: torch.device) -> LoadedModel:
    path = path.resolve()  # a link that the user names is followed; links inside a checkpoint are refused
    run = RunDir(path.parent.parent)
    if not run.exists():
        raise UserError(
            f"the checkpoint {path} is not inside its run, whose {contract.SPEC_FILE} describes the model",
            remedy=f"Put it back under RUN/{contract.CHECKPOINTS_DIR}, or name the run and --step",
        )
    shape = _shape(run)
    try:
        problem = damage(path)
        model = None if problem else _read(path, read_manifest(path), shape, device)
    except FileNotFoundError:
        problem, model = PRUNED, None
    if model is None:
        raise UserError(f"the checkpoint {path} cannot be read: {problem}", remedy="Restore it, or name another")
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


def _read(path: Path, manifest: CheckpointManifest, shape: Model, device: torch.device) -> nn.Module:
    spec = path.parent.parent / contract.SPEC_FILE
    if difference := other_shape(manifest, shape):
        raise UserError(f"{spec} has been changed: {difference}", remedy="Restore it as the run wrote it")
    check_size(shape, sum(file.bytes for file in manifest.files.values()), described_by=spec, weights=path)
    model = _empty(shape, device)
    read_checkpoint(path, weights(model))
    return model


class WrongSize(UserError):
    """The files of a model are too small for the sizes in its description."""


def check_size(shape: Model, size: int, *, described_by: Path, weights: Path) -> None:
    """Before memory is allocated: a weight takes at least a byte, so the files limit the size of the model."""
    parameters = estimate.parameters(shape, shape.vocab or 0) if shape.family in MODELS else 0
    if parameters > size:
        raise WrongSize(
            f"{described_by} describes a model of {parameters:,} parameters, and {weights} has {size:,} bytes",
            remedy="Restore them as they were written",
        )


def read_checkpoint(path: Path, wanted: Mapping[str, Tensor]) -> None:
    """Fill these tensors of a model. Raises FileNotFoundError when the checkpoint is deleted meanwhile."""
    tensors = {"model": dict(wanted)}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the missing process group
            read_tensors(tensors, path, no_dist=True)
    except CheckpointException as e:
        if not (path / contract.MANIFEST_FILE).exists():
            raise FileNotFoundError(path) from e
        error = next(failure[0] for failure in e.failures.values())
        reason = first_line(error)
        if isinstance(error, Untrusted):
            raise UserError(
                f"the checkpoint {path} cannot be read: {reason}", remedy="Restore it as its run wrote it"
            ) from e
        raise UserError(
            f"the checkpoint {path} does not fit the model of its run: {reason}",
            remedy=f"Restore {contract.SPEC_FILE} as the run wrote it",
        ) from e


def _empty(shape: Model, device: torch.device) -> nn.Module:
    """A model of that shape, with undefined weights."""
    return materialise(build(shape), device).float().eval()


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


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.partition(":")[0] == "cuda" and not torch.cuda.is_available():
        raise UserError("torch finds no GPU here", remedy="Leave the device out, or give cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # fails on a device that is not in this machine, and on `meta`
    except (RuntimeError, AssertionError, ImportError) as e:
        raise UserError(f"'{name}' is not a device of this machine", remedy="Give cpu, cuda or auto") from e
    return device
