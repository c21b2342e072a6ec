"""Imports a folder in the format of transformers as a run: its step-0 checkpoint holds the weights.

Such a run is done at step 0 and has no data; every verb that needs only a model works on it.
"""

import time
import warnings
from pathlib import Path

from stoker.data.tokenizer import save
from stoker.inference.atomic_folder import atomic_folder
from stoker.models import weights
from stoker.models.load import LoadedModel, load_model
from stoker.rundir import Exit, RunDir
from stoker.rundir.events import Imported
from stoker.rundir.state import RunState
from stoker.spec import contract
from stoker.spec.data import Data
from stoker.spec.errors import UserError
from stoker.spec.load import clean_name
from stoker.spec.model import Model
from stoker.spec.run import RunSpec, Until
from stoker.storage.mirror import run_dir, shown_folder
from stoker.storage.sync import publish
from stoker.train.checkpoint import write_checkpoint


def import_model(folder: Path, *, name: str, runs: Path) -> RunDir:
    if clean_name(name) != name:
        raise UserError(f"'{name}' cannot be a run's name", remedy=f"Call it something like {clean_name(name)}")
    imported = RunDir(runs / name)
    if run_dir(imported.path).exists():
        raise UserError(f"there is a run '{name}' in {shown_folder(runs)}", remedy="Give another --name")
    loaded = load_model(folder, device="cpu")
    if loaded.run:
        raise UserError(f"{folder} belongs to run '{loaded.run.name}' already", remedy="Use that run as it is")
    _check_tokenizer(loaded, folder)
    with atomic_folder(imported.path) as partial:
        _write(RunDir(partial), loaded, _spec(name, loaded.shape), source=folder)
    publish(imported)
    return imported


def _check_tokenizer(loaded: LoadedModel, folder: Path) -> None:
    tokens, rows = loaded.read_tokenizer().vocab, loaded.shape.vocab or 0
    if tokens > rows:
        raise UserError(
            f"the tokenizer in {folder} has {tokens} tokens, and the model an embedding of {rows}",
            remedy="Put the tokenizer that it was trained with beside it",
        )


def _spec(name: str, shape: Model) -> RunSpec:
    """A run file for it; its data and its end are placeholders."""
    return RunSpec.model_validate(
        {
            "name": name,
            "model": shape,
            "data": Data(path="imported", validation=0.0),
            "batch": {"sequences": 1, "length": min(256, shape.context)},
            "until": Until(steps=1),
        }
    )


def _write(run: RunDir, loaded: LoadedModel, spec: RunSpec, *, source: Path) -> None:
    save(loaded.read_tokenizer(), run.tokenizer)
    tensors = {"model": weights(loaded.model)}
    run.checkpoints.mkdir(parents=True)
    progress, shape = {"step": 0, "best_step": None}, spec.model.model_dump(mode="json")
    manifest = {"step": 0, "time": time.time(), "world": 1, "state": {"progress": progress, "model": shape}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the missing process group
        write_checkpoint(run.checkpoint(0), tensors, manifest)
    run.add_event(Imported(step=0, source=str(source.absolute())))
    reason = f"imported from {source.absolute()}"
    run.write_exit(Exit(state=RunState.DONE, code=contract.EXIT_DONE, step=0, reason=reason))
    run.create(spec, None)
