"""Uploads what a run needs to the volume of a cluster: its directory, its tokens, the weights of other models."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from stoker.backends.kubernetes.place import ClusterPlace
from stoker.backends.kubernetes.volume.remote import VolumeRun
from stoker.backends.transfer.client import upload
from stoker.backends.transfer.meter import TransferProgress, ignore
from stoker.backends.transfer.names import listing
from stoker.backends.transfer.send import Item
from stoker.data.mix_file import MIX_FILE, read_mix
from stoker.data.shards import INDEX_FILE
from stoker.data.stream.journal import HEADER_FILE
from stoker.kube import Cluster
from stoker.rundir import OriginRef, RunDir
from stoker.spec import contract
from stoker.spec.errors import UserError

OTHER_WEIGHTS = (".h5", ".msgpack", ".onnx", ".ot", ".gguf")  # the same weights, for other libraries
SNAPSHOTS = "snapshots"  # in the cache of huggingface_hub, files are links into the parent folder


def stage(
    run: RunDir,
    place: ClusterPlace,
    progress: Callable[[TransferProgress], None] = ignore,
    *,
    cluster: Cluster | None = None,
    begun: bool = False,
) -> TransferProgress:
    """What is already on the volume is not sent again; after an interruption the same call resumes.

    `begun`: the run has started before, and only its spec may have changed since.
    """
    remote = VolumeRun(run, place, cluster=cluster, moving=True)
    try:
        return upload([staged_spec(run)] if begun else staged(run), remote, progress)
    finally:
        remote.close()  # so that the run's own pods can mount a volume that only one node may use


def staged(run: RunDir) -> list[Item]:
    """What to upload, the run directory last: with its spec.yaml it counts as a run. Paths in it are those in a pod."""
    items: list[Item] = []
    files: dict[str, Path | bytes] = {}
    for name, path in (listing(run.tokenizer) if run.tokenizer.is_dir() else {}).items():
        files[f"{contract.TOKENIZER_DIR}/{name}"] = path
    if (run.path / contract.DATA_FILE).is_file():
        data = run.data()
        items += _tokens(Path(data.shards), data.key)
        files[contract.DATA_FILE] = _json(asdict(replace(data, shards=_in_pod(contract.VOLUME_DATA, data.key))))
    origins = run.origins()
    items += [_weights(origin) for origin in origins.values()]
    if origins:
        moved = {
            name: replace(origin, path=_in_pod(contract.VOLUME_MODELS, origin.key)) for name, origin in origins.items()
        }
        files[contract.ORIGINS_FILE] = _json({name: asdict(origin) for name, origin in moved.items()})
    folders = (contract.LEDGER_DIR, contract.LOGS_DIR, contract.CHECKPOINTS_DIR)
    spec = staged_spec(run)
    return [*_unique(items), replace(spec, files=files | dict(spec.files), folders=folders)]


def staged_spec(run: RunDir) -> Item:
    """Deletes its exit.json, because it resumes, and the number of nodes that it was scaled to."""
    return Item(
        files={contract.SPEC_FILE: run.path / contract.SPEC_FILE},
        into=f"{contract.VOLUME_RUNS}/{run.name}",
        gone=(contract.EXIT_FILE, f"{contract.MEMBERS_DIR}/{contract.NODES_FILE}"),
    )


def _tokens(folder: Path, key: str) -> list[Item]:
    """A token set, and those that a mixture draws from."""
    if (folder / HEADER_FILE).is_file() and not (folder / INDEX_FILE).is_file():
        raise UserError(
            f"data.stream: {folder} is still being written, and a run in a cluster needs all of it",
            remedy="Remove data.stream, so that the data is prepared first",
        )
    files: dict[str, Path | bytes] = {
        name: path
        for name, path in listing(folder).items()
        if not name.startswith(".")  # locks and temporary files
    }
    others: list[Item] = []
    if (folder / MIX_FILE).is_file():
        mix = read_mix(folder)
        for source in mix.sources:
            others += _tokens(folder / source.folder, source.key)
        moved = [replace(source, folder=f"../{source.key[: contract.KEY_LENGTH]}") for source in mix.sources]
        files[MIX_FILE] = _json(asdict(replace(mix, sources=moved)))
    return [*others, Item(files=files, into=_below(contract.VOLUME_DATA, key), key=key)]


def _weights(origin: OriginRef) -> Item:
    folder = Path(origin.path)
    if origin.step is None:
        within = folder.parent.parent if folder.parent.name == SNAPSHOTS else folder
        listed = listing(folder, within=within)
        files = {name: path for name, path in listed.items() if "/" not in name and path.suffix not in OTHER_WEIGHTS}
    else:
        run = RunDir(folder)
        parts = [run.checkpoint(origin.step), *([run.tokenizer] if run.tokenizer.is_dir() else [])]
        files = {contract.SPEC_FILE: folder / contract.SPEC_FILE}
        for part in parts:
            files |= {f"{part.relative_to(run.path)}/{name}": path for name, path in listing(part).items()}
    return Item(files=files, into=_below(contract.VOLUME_MODELS, origin.key), key=origin.key)


def _unique(items: list[Item]) -> list[Item]:
    """The same model may be both the initial weights and the teacher."""
    return list({item.into: item for item in items}.values())


def _below(where: str, key: str) -> str:
    return f"{where}/{key[: contract.KEY_LENGTH]}"


def _in_pod(where: str, key: str) -> str:
    return f"{contract.MOUNT}/{_below(where, key)}"


def _json(record: object) -> bytes:
    return (json.dumps(record, indent=1) + "\n").encode()
