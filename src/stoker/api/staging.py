"""What a run needs on the volume of a cluster: its directory, its tokens, the weights of other models."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from stoker.data.mix_file import MIX_FILE, read_mix
from stoker.data.shards import INDEX_FILE
from stoker.data.stream.journal import HEADER_FILE
from stoker.kube import Cluster
from stoker.launch.remote import Remote
from stoker.launch.transfer.client import upload
from stoker.launch.transfer.meter import Progress, ignore
from stoker.launch.transfer.names import listing
from stoker.launch.transfer.send import Item
from stoker.rundir import OriginRef, PlaceRef, RunDir
from stoker.spec import contract
from stoker.spec.errors import UserError

OTHER_WEIGHTS = (".h5", ".msgpack", ".onnx", ".ot", ".gguf")  # the same weights for other programs
SNAPSHOTS = "snapshots"  # in the hub's cache the files of a model are links into the folder around it


def stage(
    run: RunDir,
    ref: PlaceRef,
    progress: Callable[[Progress], None] = ignore,
    *,
    cluster: Cluster | None = None,
    begun: bool = False,
) -> Progress:
    """Have all of it on the volume. What is there is not sent again; after a cut the same call goes on.

    `begun`: the run has begun there, and only its spec may have changed since.
    """
    remote = Remote(run, ref, cluster=cluster, moving=True)
    try:
        return upload([staged_spec(run)] if begun else staged(run), remote, progress)
    finally:
        remote.remove()  # a volume that one node may use is free for the run's own pods


def staged(run: RunDir) -> list[Item]:
    """What to upload, the run directory last: once its spec.yaml is there, it is a run. Its paths are the volume's."""
    items: list[Item] = []
    files: dict[str, Path | bytes] = {}
    for name, path in (listing(run.tokenizer) if run.tokenizer.is_dir() else {}).items():
        files[f"{contract.TOKENIZER_DIR}/{name}"] = path
    if (run.path / contract.DATA_FILE).is_file():
        data = run.data()
        items += _tokens(Path(data.shards), data.key)
        files[contract.DATA_FILE] = _json(asdict(replace(data, shards=_there(contract.VOLUME_DATA, data.key))))
    origins = run.origins()
    items += [_weights(ref) for ref in origins.values()]
    if origins:
        moved = {name: replace(ref, path=_there(contract.VOLUME_MODELS, ref.key)) for name, ref in origins.items()}
        files[contract.ORIGINS_FILE] = _json({name: asdict(ref) for name, ref in moved.items()})
    folders = (contract.LEDGER_DIR, contract.LOGS_DIR, contract.CHECKPOINTS_DIR)
    spec = staged_spec(run)
    return [*_once(items), replace(spec, files=files | dict(spec.files), folders=folders)]


def staged_spec(run: RunDir) -> Item:
    """How it ended before, if it did, is forgotten: it goes on. So is how many nodes it was told to have meanwhile."""
    return Item(
        files={contract.SPEC_FILE: run.path / contract.SPEC_FILE},
        into=f"{contract.VOLUME_RUNS}/{run.name}",
        gone=(contract.EXIT_FILE, f"{contract.MEMBERS_DIR}/{contract.NODES_FILE}"),
    )


def _tokens(folder: Path, key: str) -> list[Item]:
    """A token set; of a mixture also those that it draws from."""
    if (folder / HEADER_FILE).is_file() and not (folder / INDEX_FILE).is_file():
        raise UserError(
            f"data.stream: {folder} is still being made, and a cluster needs the whole of it",
            remedy="Take data.stream out: the data is prepared first",
        )
    files: dict[str, Path | bytes] = {
        name: path
        for name, path in listing(folder).items()
        if not name.startswith(".")  # locks, and what is passing
    }
    others: list[Item] = []
    if (folder / MIX_FILE).is_file():
        mix = read_mix(folder)
        for source in mix.sources:
            others += _tokens(folder / source.folder, source.key)
        there = [replace(source, folder=f"../{source.key[: contract.KEY_LENGTH]}") for source in mix.sources]
        files[MIX_FILE] = _json(asdict(replace(mix, sources=there)))
    return [*others, Item(files=files, into=_below(contract.VOLUME_DATA, key), key=key)]


def _weights(ref: OriginRef) -> Item:
    folder = Path(ref.path)
    if ref.step is None:
        within = folder.parent.parent if folder.parent.name == SNAPSHOTS else folder
        found = listing(folder, within=within)
        files = {name: path for name, path in found.items() if "/" not in name and path.suffix not in OTHER_WEIGHTS}
    else:
        run = RunDir(folder)
        parts = [run.checkpoint(ref.step), *([run.tokenizer] if run.tokenizer.is_dir() else [])]
        files = {contract.SPEC_FILE: folder / contract.SPEC_FILE}
        for part in parts:
            files |= {f"{part.relative_to(run.path)}/{name}": path for name, path in listing(part).items()}
    return Item(files=files, into=_below(contract.VOLUME_MODELS, ref.key), key=ref.key)


def _once(items: list[Item]) -> list[Item]:
    """A model may be both what a run begins with and its teacher."""
    return list({item.into: item for item in items}.values())


def _below(where: str, key: str) -> str:
    return f"{where}/{key[: contract.KEY_LENGTH]}"


def _there(where: str, key: str) -> str:
    return f"{contract.MOUNT}/{_below(where, key)}"


def _json(record: object) -> bytes:
    return (json.dumps(record, indent=1) + "\n").encode()
