"""Weights from elsewhere: those that a run begins with, and those of its teacher.

Tensors go straight into the model, one at a time, from the file that holds them.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from stoker.rundir import OriginRef, RunDir
from stoker.rundir.checkpoint import damage
from stoker.spec import forms
from stoker.spec.errors import UserError
from stoker.spec.model import Model
from stoker.spec.run import RunSpec
from stoker.storage.mirror import run_dir
from stoker.train.load import LoadedModel, Step, load_model, read_checkpoint
from stoker.train.models import Weights, hf, model_spec, weights


def start(model: nn.Module, spec: RunSpec, run: RunDir) -> None:
    """Fill a new model, from one that may have more layers."""
    origin = run.origins()["init"]
    folder = _place(run, "init", origin)
    _refuse_others(folder, origin, "init.path")
    family, shape = model_spec(spec.model.family), _shape(folder, origin)
    layers = spec.init.taken(shape.layers, spec.model.layers)
    wanted = _renumbered(weights(model), family.blocks, layers)
    if origin.step is None:
        hf.fill(folder, shape, wanted, partial=len(layers) < shape.layers)
    else:
        _fill(run_dir(folder), origin.step, origin, wanted)


def _fill(run: RunDir, step: int, origin: OriginRef, wanted: Mapping[str, Tensor]) -> None:
    run.fetch(next(saved for saved in run.saved() if saved.step == step))
    path = run.checkpoint(step)
    try:
        problem = damage(path)
        if problem is None:
            read_checkpoint(path, wanted)
    except FileNotFoundError as e:  # pruned this moment
        raise _refusal("init.path", origin, "is gone") from e
    if problem:
        raise _refusal("init.path", origin, f"cannot be read: {problem}")


def freeze_positions(model: nn.Module, spec: RunSpec) -> None:
    names = model_spec(spec.model.family).positions
    if not names:
        raise UserError(
            f"a {spec.model.family} has no position embeddings to freeze", remedy="Set init.freeze_positions to false"
        )
    for name in names:
        model.get_parameter(name).requires_grad_(False)


def teacher(run: RunDir, device: torch.device) -> LoadedModel | None:
    origin = run.origins().get("teacher")
    if origin is None:
        return None
    folder = _place(run, "teacher", origin)
    _refuse_others(folder, origin, "objective.teacher")
    step: Step = "newest" if origin.step is None else origin.step
    loaded = load_model(folder, step=step, device=str(device), trust=True)  # who launched the run was asked
    loaded.model.requires_grad_(False)
    return loaded


def _place(run: RunDir, name: str, origin: OriginRef) -> Path:
    """Where the run holds it; one that came here from a store goes back to where it was."""
    held = run.held(name)
    return held if held.is_dir() else Path(origin.path)


def _shape(folder: Path, origin: OriginRef) -> Model:
    return forms.read_shape(folder) if origin.step is None else run_dir(folder).spec().model


def _refuse_others(folder: Path, origin: OriginRef, key: str) -> None:
    """The weights must be those that were there when the run was made."""
    if origin.step is None:
        there = forms.identity(folder) if (folder / forms.CONFIG_FILE).is_file() else None
    else:
        run = run_dir(folder)
        saved = [saved for saved in run.saved() if saved.step == origin.step] if run.exists() else []
        there = saved[0].key if saved else None
    if there != origin.key:
        problem = "is gone" if there is None else "holds other weights than when this run was made"
        raise _refusal(key, origin, problem)


def _refusal(key: str, origin: OriginRef, problem: str) -> UserError:
    which = f"{origin.path}{f', step {origin.step},' if origin.step is not None else ''}"
    return UserError(f"{key} {which} {problem}", remedy="Restore it, or start another run with --new")


def _renumbered(held: Weights, blocks: str, layers: list[int]) -> Mapping[str, Tensor]:
    """Our tensors under the names that they have in the model they come from."""
    found = {}
    for name, tensor in held.items():
        if name.startswith(f"{blocks}."):
            number, _, rest = name.removeprefix(f"{blocks}.").partition(".")
            name = f"{blocks}.{layers[int(number)]}.{rest}"
        found[name] = tensor
    return found
