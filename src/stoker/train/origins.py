"""Weights from other runs and folders: those that a run starts from, and those of its teacher.

Tensors are read straight into the model, one at a time.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from stoker.models import Weights, hf, model_spec, weights
from stoker.models.load import LoadedModel, Step, load_model, read_checkpoint
from stoker.rundir import OriginRef, RunDir
from stoker.rundir.checkpoint import damage
from stoker.spec import hf_config
from stoker.spec.errors import UserError
from stoker.spec.model import Model
from stoker.spec.run import RunSpec
from stoker.storage.mirror import run_dir


def load_initial_weights(model: nn.Module, spec: RunSpec, run: RunDir) -> None:
    """Fill a new model from `init.path`, which may have more layers."""
    origin = run.origins()["init"]
    folder = _folder(run, "init", origin)
    _check_unchanged(folder, origin, "init.path")
    family, shape = model_spec(spec.model.family), _shape(folder, origin)
    layers = spec.init.blocks(shape.layers, spec.model.layers)
    wanted = _renumbered(weights(model), family.blocks, layers)
    if origin.step is None:
        hf.fill(folder, shape, wanted, partial=len(layers) < shape.layers)
    else:
        _fill(run_dir(folder), origin.step, origin, wanted)


def _fill(run: RunDir, step: int, origin: OriginRef, wanted: Mapping[str, Tensor]) -> None:
    path = run.checkpoint(step)
    try:
        for saved in run.saved():
            if saved.step == step:
                run.fetch(saved)
        problem = damage(path)
        if problem is None:
            read_checkpoint(path, wanted)
    except FileNotFoundError as e:  # pruned just now
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


def load_teacher(run: RunDir, device: torch.device) -> LoadedModel | None:
    origin = run.origins().get("teacher")
    if origin is None:
        return None
    folder = _folder(run, "teacher", origin)
    _check_unchanged(folder, origin, "objective.teacher")
    step: Step = "newest" if origin.step is None else origin.step
    loaded = load_model(folder, step=step, device=str(device), trust=True)  # confirmed when the run was launched
    loaded.model.requires_grad_(False)
    return loaded


def _folder(run: RunDir, name: str, origin: OriginRef) -> Path:
    """The run's own copy, if it has one, else the original."""
    folder = run.origin_folder(name)
    return folder if folder.is_dir() else Path(origin.path)


def _shape(folder: Path, origin: OriginRef) -> Model:
    return hf_config.read_shape(folder) if origin.step is None else run_dir(folder).spec().model


def _check_unchanged(folder: Path, origin: OriginRef, key: str) -> None:
    """The weights must be those that the run was created with."""
    if origin.step is None:
        key_now = hf_config.identity(folder) if (folder / hf_config.CONFIG_FILE).is_file() else None
    else:
        run = run_dir(folder)
        saved = [saved for saved in run.saved() if saved.step == origin.step] if run.exists() else []
        key_now = saved[0].key if saved else None
    if key_now != origin.key:
        problem = "is gone" if key_now is None else "holds other weights than when this run was made"
        raise _refusal(key, origin, problem)


def _refusal(key: str, origin: OriginRef, problem: str) -> UserError:
    name = f"{origin.path}{f', step {origin.step},' if origin.step is not None else ''}"
    return UserError(f"{key} {name} {problem}", remedy="Restore it, or start another run with --new")


def _renumbered(held: Weights, blocks: str, layers: list[int]) -> Mapping[str, Tensor]:
    """Our tensors, under the names that they have in the model they come from."""
    renamed = {}
    for name, tensor in held.items():
        if name.startswith(f"{blocks}."):
            number, _, rest = name.removeprefix(f"{blocks}.").partition(".")
            name = f"{blocks}.{layers[int(number)]}.{rest}"
        renamed[name] = tensor
    return renamed
