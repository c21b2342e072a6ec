"""Copies a run directory from the volume of a cluster to this machine, with the token set that it was trained on."""

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from stoker.backends.transfer.client import Endpoint, download
from stoker.backends.transfer.meter import TransferProgress
from stoker.backends.transfer.target import unfinished
from stoker.data.location import KEY, beside, key_in, token_folder
from stoker.data.mix_file import MIX_FILE, read_mix
from stoker.rundir import RunDir
from stoker.spec import contract
from stoker.spec.errors import NotFound, UserError

OnProgress = Callable[[TransferProgress], None]


def run_at(path: str) -> str | None:
    """The name of the run whose directory this path of the volume is; None for any other path."""
    parts = PurePosixPath(path).parts
    return parts[1] if len(parts) == 2 and parts[0] == contract.VOLUME_RUNS and parts[1] != ".." else None


def copy_target(to: Path, name: str) -> RunDir:
    """Where a copy of that run is written: to this path, or below it if it is an unrelated folder.

    An earlier copy of the same run, complete or not, is updated.
    """
    again = to.name == name or unfinished(to) == name or (RunDir(to).exists() and RunDir(to).any_spec().name == name)
    copy = RunDir(to if again or not to.is_dir() else to / name)
    if not copy.location().is_here:
        raise UserError(
            f"{copy.path} is the record of run '{name}' in the cluster, and a copy would overwrite it",
            remedy=f"Name another folder, such as ./{name}-copy",
        )
    return copy


def copy_run(volume: Endpoint, name: str, copy: RunDir, progress: OnProgress) -> TransferProgress:
    """The run directory itself."""
    return download(volume, f"{contract.VOLUME_RUNS}/{name}", copy.path, progress, exact=True)


def copy_tokens(volume: Endpoint, copy: RunDir, progress: OnProgress) -> Iterator[tuple[Path, TransferProgress | None]]:
    """Downloads the token set of a copied run to where the copy looks for it, and those that a mixture draws from.

    Yields each folder, with None if it is already here.
    """
    if not (copy.path / contract.DATA_FILE).is_file():
        return  # a run of a script has none
    key = copy.data().key
    folder = token_folder(copy)
    if key_in(folder) == key and not folder.is_relative_to(copy.path):
        yield folder, None
        return
    try:
        yield from _fetch(volume, copy, key, progress)
    except NotFound as e:
        raise NotFound(
            f"{copy.path} has the run, but not its token set: {e.problem}",
            remedy=f"{e.remedy}; --no-tokens copies the run without it",
        ) from e


def weight_commands(copy: RunDir, run: str) -> list[str]:
    """Commands that copy the weights of other models, which only a replay needs."""
    commands = []
    for name, ref in copy.origins().items():
        folder = copy.origin_folder(name)
        known = KEY.fullmatch(ref.key) and PurePosixPath(ref.path).is_relative_to(contract.MOUNT)
        if known and not folder.is_dir():
            path = f"/{contract.VOLUME_MODELS}/{ref.key[: contract.KEY_LENGTH]}"
            to = shlex.quote(str(folder))
            commands.append(f"mkdir -p {shlex.quote(str(folder.parent))} && stoker cp {run}:{path} {to}")
    return commands


def _fetch(
    volume: Endpoint, copy: RunDir, key: str, progress: OnProgress
) -> Iterator[tuple[Path, TransferProgress | None]]:
    if not KEY.fullmatch(key):
        raise UserError(f"{copy.path / contract.DATA_FILE} names no token set", remedy="Restore it")
    folder = beside(copy, key)
    folder.parent.mkdir(exist_ok=True)
    yield folder, download(volume, f"{contract.VOLUME_DATA}/{folder.name}", folder, progress, exact=True)
    if key_in(folder) != key:
        raise UserError(f"{folder} has other data than the run was trained on", remedy="Restore it on the volume")
    for source in _sources(folder):
        yield from _fetch(volume, copy, source, progress)


def _sources(folder: Path) -> list[str]:
    """The keys of the sets that a mixture draws from; they are beside it."""
    return [source.key for source in read_mix(folder).sources] if (folder / MIX_FILE).is_file() else []
