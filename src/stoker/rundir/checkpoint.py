"""The manifest of a checkpoint: its fields, its seal, and the check that its files are undamaged. No torch.

Seal and hashes are not keyed: they detect accidental damage only. Whoever can write the folder can forge them, so the
manifest is validated as untrusted input.
"""

import hashlib
import json
import os
import re
import stat
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stoker.spec import contract
from stoker.spec.bounded import MAX_BYTES, parse_json
from stoker.spec.files import FileTooLarge, NotRegularEntry, read_regular
from stoker.spec.model import Model

Count = Annotated[int, Field(ge=0, le=2**53)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
FileName = Annotated[str, Field(pattern=r"^\.?[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}$")]
AttemptName = Annotated[str, Field(pattern=r"^attempt-[0-9]{4,9}$")]
Files = dict[str, dict[str, Any]]  # name -> bytes and sha256, as a manifest is written
STEP_FOLDER = re.compile(r"step-(\d{9})")


class _ManifestPart(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class CheckpointFile(_ManifestPart):
    bytes: Count
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class TrainingProgress(_ManifestPart):
    """How far training has come. Sample order, dropout and learning rate depend only on it."""

    step: Count = 0
    updates: Count = 0
    """Steps that were applied: the learning rate counts these."""
    skipped: Count = 0
    tokens: Count = 0
    drawn: Count = 0
    """Samples used: the sample order counts these. The last step of an epoch may be short."""
    best_loss: Finite | None = None
    best_step: Count | None = None
    evaluations_without_gain: Count = 0


class SavedChoices(_ManifestPart):
    """Settings that the run chose when it started."""

    precision: Literal["fp32", "bf16", "fp16"]
    compile: bool
    micro: Annotated[int, Field(ge=1, le=2**31)]


class SavedLossScale(_ManifestPart):
    scale: Annotated[Finite, Field(gt=0)]
    good_steps: Count


class TrainingState(_ManifestPart):
    progress: TrainingProgress = TrainingProgress()
    choices: SavedChoices | None = None
    named_micro: Annotated[int, Field(ge=1, le=2**31)] | None = None
    """`batch.micro` of the run file; None where the run chose it."""
    horizon: Count | None = None
    loss_scale: SavedLossScale | None = None
    resume: Count | Literal["auto"] = "auto"
    model: Model | None = None
    """The model of the run's spec; None in a checkpoint of an older version."""


class CheckpointManifest(_ManifestPart):
    step: Annotated[int, Field(ge=0, lt=10**9)]
    time: Finite = 0.0
    world: Annotated[int, Field(ge=1, le=10**7)] = 1
    state: TrainingState = TrainingState()
    files: dict[FileName, CheckpointFile]
    ledger: dict[AttemptName, CheckpointFile] | None = None
    """The ledger of each attempt up to this checkpoint."""

    @property
    def key(self) -> str:
        """Identifies the weights: a hash of the file hashes."""
        files = {name: file.model_dump() for name, file in self.files.items()}
        return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def other_shape(manifest: CheckpointManifest, model: Model) -> str | None:
    """How a spec's model differs from the saved one, or None. Not every difference shows in a tensor: heads do not."""
    if manifest.state.model is None:
        return None
    saved, now = manifest.state.model.model_dump(), model.model_dump()
    fields = [name for name in saved if saved[name] != now[name]]
    shown = ", ".join(f"model.{name} is {now[name]} and was {saved[name]}" for name in fields[:3])
    return f"{shown} when step {manifest.step} was saved" if fields else None


def parse_manifest(data: str | bytes) -> CheckpointManifest:
    """Raises ValueError. Does not check the seal: `damage` does."""
    return _validated(parse_json(data))


def read_manifest(folder: Path) -> CheckpointManifest:
    """Raises ValueError when it is not a manifest, FileNotFoundError when there is none."""
    if folder.is_symlink():
        raise ValueError("the folder is a link")
    return parse_manifest(_read(folder))


def sealed(record: dict[str, Any], files: Files) -> dict[str, Any]:
    """The manifest with its files and seal. It is written last: a checkpoint that has one is complete."""
    record = record | {"files": dict(sorted(files.items()))}
    return record | {"seal": _seal(record)}


def file_facts(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": _sha256(path)}


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint that has a manifest, or None when it is undamaged.

    Raises FileNotFoundError when there is no manifest: the checkpoint was pruned, or never completed.
    """
    try:
        manifest = read_sealed(folder)
    except ValueError as e:
        return f"{contract.MANIFEST_FILE} {e}"
    number = STEP_FOLDER.fullmatch(folder.name)
    if folder.is_symlink():
        return "the folder is a link"
    if number and manifest.step != int(number[1]):
        return f"{contract.MANIFEST_FILE} is of step {manifest.step}"
    problems = (file_damage(folder / name, file) for name, file in manifest.files.items())
    return next((problem for problem in problems if problem), None)


def file_damage(path: Path, file: CheckpointFile) -> str | None:
    """What is wrong with a file of a checkpoint, or None. A link is refused: it may lead out of the folder."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return f"{path.name} is missing"
    if not stat.S_ISREG(status.st_mode):
        return f"{path.name} is {'a link' if stat.S_ISLNK(status.st_mode) else 'not a file'}"
    if status.st_size != file.bytes:
        return f"{path.name} has {status.st_size} bytes instead of {file.bytes}"
    if _sha256(path) != file.sha256:
        return f"{path.name} has changed since it was written"
    return None


def read_sealed(folder: Path) -> CheckpointManifest:
    """Raises ValueError when the seal does not match: it is written atomically, so a kill cannot cause that."""
    data, changed = _read(folder), "has changed since it was written"
    try:
        record = parse_json(data)
    except ValueError as e:
        raise ValueError(changed) from e
    if not isinstance(record, dict) or record.pop("seal", None) != _seal(record):
        raise ValueError(changed)
    return _validated(record)


def _read(folder: Path) -> bytes:
    path = folder / contract.MANIFEST_FILE
    if path.is_symlink():
        raise ValueError("is a link")
    try:
        return read_regular(path, max_bytes=MAX_BYTES, follow_links=False)
    except NotRegularEntry as e:
        raise ValueError("is not a regular file") from e
    except FileTooLarge as e:
        raise ValueError("is too large") from e


def _validated(record: object) -> CheckpointManifest:
    try:
        return CheckpointManifest.model_validate(record)
    except ValidationError as e:
        first = e.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise ValueError(f"is not a manifest: {where}: {first['msg']}") from e


def _seal(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
