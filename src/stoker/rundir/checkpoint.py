"""A checkpoint's manifest: what it may say, its seal, and whether the files are those that were written. No torch.

The seal and the hashes are not keyed. They show damage by accident: whoever can write the folder can write them too,
so everything here is checked as the words of a stranger.
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
from stoker.spec.bounded import parse_json, read_file
from stoker.spec.model import Model

Count = Annotated[int, Field(ge=0, le=2**53)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
FileName = Annotated[str, Field(pattern=r"^\.?[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}$")]
AttemptName = Annotated[str, Field(pattern=r"^attempt-[0-9]{4,9}$")]
Files = dict[str, dict[str, Any]]  # name -> bytes and sha256, as a manifest is written
STEP_FOLDER = re.compile(r"step-(\d{9})")


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class File(_Part):
    bytes: Count
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Progress(_Part):
    """How far training has come."""

    step: Count = 0
    updates: Count = 0
    skipped: Count = 0
    tokens: Count = 0
    drawn: Count = 0
    best_loss: Finite | None = None
    best_step: Count | None = None
    evaluations_without_gain: Count = 0


class Chosen(_Part):
    """What the run decided for itself when it began."""

    precision: Literal["fp32", "bf16", "fp16"]
    compile: bool
    micro: Annotated[int, Field(ge=1, le=2**31)]


class LossScale(_Part):
    scale: Annotated[Finite, Field(gt=0)]
    good_steps: Count


class State(_Part):
    progress: Progress = Progress()
    choices: Chosen | None = None
    named_micro: Annotated[int, Field(ge=1, le=2**31)] | None = None
    """`batch.micro` as the user set it; None where the run chose."""
    horizon: Count | None = None
    loss_scale: LossScale | None = None
    resume: Count | Literal["auto"] = "auto"
    model: Model | None = None
    """What the run's spec said of its model; None in a checkpoint of an older version."""


class Manifest(_Part):
    step: Annotated[int, Field(ge=0, lt=10**9)]
    time: Finite = 0.0
    world: Annotated[int, Field(ge=1, le=10**7)] = 1
    state: State = State()
    files: dict[FileName, File]
    ledger: dict[AttemptName, File] | None = None
    """Of each attempt that led to it, the ledger up to it."""

    @property
    def key(self) -> str:
        """What the weights are known by."""
        files = {name: file.model_dump() for name, file in self.files.items()}
        return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def other_shape(manifest: Manifest, model: Model) -> str | None:
    """How a spec's model differs from the one that was saved, if it does: heads, for one, do not show in a tensor."""
    if manifest.state.model is None:
        return None
    saved, now = manifest.state.model.model_dump(), model.model_dump()
    fields = [name for name in saved if saved[name] != now[name]]
    shown = ", ".join(f"model.{name} is {now[name]} and was {saved[name]}" for name in fields[:3])
    return f"{shown} when step {manifest.step} was saved" if fields else None


def parse_manifest(data: str | bytes) -> Manifest:
    """Raises ValueError. Whether it is as it was written is for `damage` to say."""
    return _validated(parse_json(data))


def read_manifest(folder: Path) -> Manifest:
    """Raises ValueError when it is not a manifest, FileNotFoundError when there is none."""
    if folder.is_symlink():
        raise ValueError("the folder is a link")
    return parse_manifest(_read(folder))


def sealed(record: dict[str, Any], files: Files) -> dict[str, Any]:
    """A manifest as it is written, last of all: a checkpoint that has one is complete."""
    record = record | {"files": dict(sorted(files.items()))}
    return record | {"seal": _seal(record)}


def file_facts(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": _sha256(path)}


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint that has a manifest, or None when it is as it was written.

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


def file_damage(path: Path, file: File) -> str | None:
    """What is wrong with one of a checkpoint's files. A link is refused: it may lead out of the folder."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return f"{path.name} is missing"
    if not stat.S_ISREG(found.st_mode):
        return f"{path.name} is {'a link' if stat.S_ISLNK(found.st_mode) else 'not a file'}"
    if found.st_size != file.bytes:
        return f"{path.name} has {found.st_size} bytes instead of {file.bytes}"
    if _sha256(path) != file.sha256:
        return f"{path.name} has changed since it was written"
    return None


def read_sealed(folder: Path) -> Manifest:
    """It is replaced in one go, so no kill leaves it torn."""
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
    return read_file(path)


def _validated(record: object) -> Manifest:
    try:
        return Manifest.model_validate(record)
    except ValidationError as e:
        first = e.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise ValueError(f"is not a manifest: {where}: {first['msg']}") from e


def _seal(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
