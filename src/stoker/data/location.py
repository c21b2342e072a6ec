"""Finds the token set of a run: on the machine that prepared it, on a volume, or beside a copy of the run."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from stoker.rundir import DataRef, RunDir
from stoker.spec import contract
from stoker.spec.bounded import read_json
from stoker.spec.errors import UserError

HEADS = ("mix.json", "index.json", "stream.json")  # as in mixture.py, shards.py and stream/, which load numpy
MAX_INDEX_BYTES = 256 << 20  # enough for a million shards
KEY = re.compile(r"[0-9A-Za-z]{1,128}")


def token_folder(run: RunDir) -> Path:
    """The folder in data.json; if it does not have the set, a folder beside the run that is named after its key.

    Only a folder with the run's own key is used. Otherwise returns the path in data.json, for the caller to report.
    """
    data = run.data()
    matching = (folder for folder in _places(run, data) if key_in(folder) == data.key)
    return next(matching, run.path / data.shards)


def beside(run: RunDir, key: str) -> Path:
    """The folder in a copied run directory for a token set that came with it."""
    return run.path / contract.VOLUME_DATA / key[: contract.KEY_LENGTH]


def key_in(folder: Path) -> str | None:
    """The content key of the token set in a folder; None if no set can be read."""
    head = next((file for name in HEADS if (file := folder / name).is_file()), None)
    try:
        record = read_json(head, max_bytes=MAX_INDEX_BYTES) if head else None
    except (OSError, ValueError):
        return None
    key = record.get("key") if isinstance(record, dict) else None
    return key if isinstance(key, str) else None


def missing(run: RunDir, folder: Path) -> UserError:
    """The error for a missing token set, with the command that fetches it."""
    if folder.is_relative_to(contract.MOUNT):  # a path in a pod: this is a copy of a cluster's run
        name, target = run.any_spec().name, shlex.quote(str(run.path))
        remedy = f"Copy it from the run's volume, where the run was launched: stoker cp {name}: {target}"
    else:
        remedy = "Restore it, or prepare the data again"
    return UserError(f"the run's token set {folder} is missing", remedy=remedy)


def _places(run: RunDir, data: DataRef) -> Iterator[Path]:
    yield run.path / data.shards
    if KEY.fullmatch(data.key):
        yield beside(run, data.key)
        yield run.path.parent / contract.PREPARED_DIR / data.key
        yield run.path.parent.parent / contract.VOLUME_DATA / data.key[: contract.KEY_LENGTH]  # a copy of the volume
