"""A run directory from the volume of a cluster to a folder here, with the token set that it was trained on."""

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from stoker.data.located import KEY, beside, key_in, token_folder
from stoker.data.mix_file import MIX_FILE, read_mix
from stoker.launch.transfer.client import Place, download
from stoker.launch.transfer.meter import Progress
from stoker.launch.transfer.target import unfinished
from stoker.rundir import RunDir
from stoker.spec import contract
from stoker.spec.errors import UserError

Look = Callable[[Progress], None]


def run_named(path: str) -> str | None:
    """The run whose whole directory a path of the volume is; None for any other path."""
    parts = PurePosixPath(path).parts
    return parts[1] if len(parts) == 2 and parts[0] == contract.VOLUME_RUNS and parts[1] != ".." else None


def copied_to(to: Path, name: str) -> RunDir:
    """Where a copy of that run goes: to this path, or below it if it is a folder of something else.

    An earlier copy of the same run, whole or cut short, is brought up to date.
    """
    again = to.name == name or unfinished(to) == name or (RunDir(to).exists() and RunDir(to).any_spec().name == name)
    copy = RunDir(to if again or not to.is_dir() else to / name)
    if copy.place_ref() is not None:
        raise UserError(
            f"{copy.path} says where run '{name}' lives, and a copy in its place would hide that",
            remedy=f"Name another folder, such as ./{name}-copy",
        )
    return copy


def copy_run(volume: Place, name: str, copy: RunDir, look: Look) -> Progress:
    """The run directory itself."""
    return download(volume, f"{contract.VOLUME_RUNS}/{name}", copy.path, look, exact=True)


def copy_tokens(volume: Place, copy: RunDir, look: Look) -> Iterator[tuple[Path, Progress | None]]:
    """Have the token set of a copied run where the copy finds it; one that is here already is not fetched: None.

    Of a mixture also the sets that it draws from.
    """
    if not (copy.path / contract.DATA_FILE).is_file():
        return  # a script's run has none
    key = copy.data().key
    here = token_folder(copy)
    if key_in(here) == key and not here.is_relative_to(copy.path):
        yield here, None
        return
    try:
        yield from _fetch(volume, copy, key, look)
    except UserError as e:
        raise UserError(
            f"{copy.path} has the run, but not its token set: {e.problem}",
            remedy=f"{e.remedy}; --no-tokens leaves the token set there",
        ) from e


def weights_left(copy: RunDir, run: str) -> list[str]:
    """Commands for the weights of other models, which a replay needs and nothing else does."""
    found = []
    for name, ref in copy.origins().items():
        held = copy.held(name)
        known = KEY.fullmatch(ref.key) and PurePosixPath(ref.path).is_relative_to(contract.MOUNT)
        if known and not held.is_dir():
            path = f"/{contract.VOLUME_MODELS}/{ref.key[: contract.KEY_LENGTH]}"
            to = shlex.quote(str(held))
            found.append(f"mkdir -p {shlex.quote(str(held.parent))} && stoker cp {run}:{path} {to}")
    return found


def _fetch(volume: Place, copy: RunDir, key: str, look: Look) -> Iterator[tuple[Path, Progress | None]]:
    if not KEY.fullmatch(key):
        raise UserError(f"{copy.path / contract.DATA_FILE} names no token set", remedy="Restore it")
    folder = beside(copy, key)
    folder.parent.mkdir(exist_ok=True)
    yield folder, download(volume, f"{contract.VOLUME_DATA}/{folder.name}", folder, look, exact=True)
    if key_in(folder) != key:
        raise UserError(f"{folder} holds other data than the run was trained on", remedy="Restore it on the volume")
    for source in _sources(folder):
        yield from _fetch(volume, copy, source, look)


def _sources(folder: Path) -> list[str]:
    """The keys of the sets that a mixture draws from; they lie beside it."""
    return [source.key for source in read_mix(folder).sources] if (folder / MIX_FILE).is_file() else []
