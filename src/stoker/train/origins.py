"""Weights from elsewhere: those that a run begins with, and those of its teacher.

Tensors go straight into the model, one at a time, from the file that holds them.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from stoker.rundir import OriginRef
from stoker.spec import forms
from stoker.spec.errors import UserError
from stoker.spec.model import Model
from stoker.spec.run import RunSpec
from stoker.storage.mirror import run_dir
from stoker.train.load import LoadedModel, Step, load_model, read_checkpoint
from stoker.train.models import Weights, hf, model_spec, weights


def start(model: nn.Module, spec: RunSpec, origin: OriginRef) -> None:
    """Fill a new model, from one that may have more layers."""
    _refuse_others(origin, "init.path")
    family, shape = model_spec(spec.model.family), _shape(origin)
    layers = spec.init.taken(shape.layers, spec.model.layers)
    wanted = _renumbered(weights(model), family.blocks, layers)
    if origin.step is None:
        hf.fill(Path(origin.path), shape, wanted, partial=len(layers) < shape.layers)
    else:
        run = run_dir(Path(origin.path))
        run.fetch(next(saved for saved in run.saved() if saved.step == origin.step))
        read_checkpoint(run.checkpoint(origin.step), wanted)


def freeze_positions(model: nn.Module, spec: RunSpec) -> None:
    names = model_spec(spec.model.family).positions
    if not names:
        raise UserError(
            f"a {spec.model.family} has no position embeddings to freeze", remedy="Set init.freeze_positions to false"
        )
    for name in names:
        model.get_parameter(name).requires_grad_(False)


def teacher(origin: OriginRef, device: torch.device) -> LoadedModel:
    _refuse_others(origin, "objective.teacher")
    step: Step = "newest" if origin.step is None else origin.step
    loaded = load_model(Path(origin.path), step=step, device=str(device))
    loaded.model.requires_grad_(False)
    return loaded


def _shape(origin: OriginRef) -> Model:
    folder = Path(origin.path)
    return forms.read_shape(folder) if origin.step is None else run_dir(folder).spec().model


def _refuse_others(origin: OriginRef, key: str) -> None:
    """The weights must be those that were there when the run was made."""
    folder = Path(origin.path)
    if origin.step is None:
        there = forms.identity(folder) if (folder / forms.CONFIG_FILE).is_file() else None
    else:
        run = run_dir(folder)
        saved = [saved for saved in run.saved() if saved.step == origin.step] if run.exists() else []
        there = saved[0].key if saved else None
    if there != origin.key:
        which = f"{origin.path}{f', step {origin.step},' if origin.step is not None else ''}"
        problem = "is gone" if there is None else "holds other weights than when this run was made"
        raise UserError(f"{key} {which} {problem}", remedy="Restore it, or start another run with --new")


def _renumbered(held: Weights, blocks: str, layers: list[int]) -> Mapping[str, Tensor]:
    """Our tensors under the names that they have in the model they come from."""
    found = {}
    for name, tensor in held.items():
        if name.startswith(f"{blocks}."):
            number, _, rest = name.removeprefix(f"{blocks}.").partition(".")
            name = f"{blocks}.{layers[int(number)]}.{rest}"
        found[name] = tensor
    return found
