"""Malicious checkpoints whose hashes and seals are correct."""

import hashlib
import io
import json
import pickle
import random
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex

from tests.fuzz import hostile
from tests.fuzz.runner import MARKER

TABLE = ".metadata"


class Payload:
    """Creates the marker file when it is unpickled."""

    def __reduce__(self) -> Any:
        return open, (MARKER, "w")


def spoil(draw: random.Random, checkpoint: Path, outside: Path) -> str:
    """Change a checkpoint, seal it again, and describe the change."""
    change = draw.choice(list(CHANGES))
    CHANGES[change](draw, checkpoint, outside)
    seal(checkpoint)
    return change


def seal(checkpoint: Path, *, extra: dict[str, Any] | None = None) -> None:
    """Write hashes and seal as the trainer does after a save. A manifest that is not a file is left unchanged."""
    path = checkpoint / "manifest.json"
    if not path.is_file():
        return
    manifest = json.loads(path.read_text())
    manifest.pop("seal", None)
    for name in list(manifest["files"]):
        file = checkpoint / name
        if file.is_file():
            content = file.read_bytes()
            manifest["files"][name] |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest |= extra or {}
    text = json.dumps(manifest, sort_keys=True)
    path.write_text(json.dumps(manifest | {"seal": hashlib.sha256(text.encode()).hexdigest()}))


def _table(checkpoint: Path) -> Any:
    return pickle.loads((checkpoint / TABLE).read_bytes())


def _write_table(checkpoint: Path, table: Any) -> None:
    (checkpoint / TABLE).write_bytes(pickle.dumps(table))


def _bytes_entry(draw: random.Random, checkpoint: Path, _outside: Path) -> None:
    """torch reads such an entry with an unrestricted unpickler."""
    table = _table(checkpoint)
    names = [name for name in table.state_dict_metadata if name.startswith("model.")]
    name = draw.choice(names)
    buffer = io.BytesIO()
    torch.save(Payload(), buffer)
    [index] = [index for index in table.storage_data if index.fqn == name]
    chunk = table.storage_data.pop(index)
    data = checkpoint / chunk.relative_path
    start = data.stat().st_size
    data.write_bytes(data.read_bytes() + buffer.getvalue())
    table.state_dict_metadata[name] = BytesStorageMetadata()
    chunk.offset, chunk.length = start, len(buffer.getvalue())
    table.storage_data[MetadataIndex(name)] = chunk
    _write_table(checkpoint, table)


def _pickle_payload(draw: random.Random, checkpoint: Path, _outside: Path) -> None:
    table = _table(checkpoint)
    if draw.random() < 0.5:
        _write_table(checkpoint, Payload())
    else:
        name = draw.choice(list(table.state_dict_metadata))
        table.state_dict_metadata[name] = Payload()
        _write_table(checkpoint, table)


def _tensor_payload(draw: random.Random, checkpoint: Path, _outside: Path) -> None:
    """A pickle where the bytes of a tensor should be."""
    table = _table(checkpoint)
    index = draw.choice([index for index in table.storage_data if index.fqn.startswith("model.")])
    buffer = io.BytesIO()
    if draw.random() < 0.5:
        torch.save(Payload(), buffer)
    else:
        buffer.write(pickle.dumps(Payload()))
    chunk = table.storage_data[index]
    data = checkpoint / chunk.relative_path
    start = data.stat().st_size
    data.write_bytes(data.read_bytes() + buffer.getvalue())
    chunk.offset, chunk.length = start, len(buffer.getvalue())
    _write_table(checkpoint, table)


def _other_path(draw: random.Random, checkpoint: Path, outside: Path) -> None:
    table = _table(checkpoint)
    chunk = draw.choice(list(table.storage_data.values()))
    absolute = str(outside / "secret")
    chunk.relative_path = draw.choice(
        ["../../../../outside/secret", absolute, "unlisted.distcp", "/dev/zero", "", ".", "..", "a\0b", 7, None]
    )
    if draw.random() < 0.5:
        (checkpoint / "unlisted.distcp").write_bytes((checkpoint / "__0_0.distcp").read_bytes())
    _write_table(checkpoint, table)


def _link(draw: random.Random, checkpoint: Path, outside: Path) -> None:
    data = draw.choice([*checkpoint.glob("*.distcp"), checkpoint / TABLE])
    target = outside.parent / "work" / "elsewhere"
    data.rename(target)
    data.symlink_to(draw.choice([target, outside / "secret", Path("/dev/zero")]))


def _numbers(draw: random.Random, checkpoint: Path, _outside: Path) -> None:
    table = _table(checkpoint)
    chunk = draw.choice(list(table.storage_data.values()))
    bad = draw.choice([-1, 2**62, 10**30, "x", None, 1.5, 0])
    setattr(chunk, draw.choice(["offset", "length"]), bad)
    _write_table(checkpoint, table)


def _sizes(draw: random.Random, checkpoint: Path, _outside: Path) -> None:
    table = _table(checkpoint)
    entry = draw.choice([e for e in table.state_dict_metadata.values() if hasattr(e, "size")])
    entry.size = draw.choice([torch.Size([2**40]), torch.Size([]), torch.Size([1] * 60), torch.Size([0])])
    if draw.random() < 0.5:
        entry.chunks[0].sizes = entry.size
    _write_table(checkpoint, table)


def _missing_names(draw: random.Random, checkpoint: Path, _outside: Path) -> None:
    table = _table(checkpoint)
    for name in draw.sample(list(table.state_dict_metadata), 3):
        del table.state_dict_metadata[name]
    _write_table(checkpoint, table)


def _table_bytes(draw: random.Random, checkpoint: Path, _outside: Path) -> None:
    path = checkpoint / TABLE
    path.write_bytes(hostile.changed_bytes(draw, path.read_bytes()))


def _data_bytes(draw: random.Random, checkpoint: Path, _outside: Path) -> None:
    path = draw.choice(list(checkpoint.glob("*.distcp")))
    path.write_bytes(hostile.changed_bytes(draw, path.read_bytes()))


def _opcodes(draw: random.Random, checkpoint: Path, _outside: Path) -> None:
    """Pickles that take long or much memory, or call functions that a table may name."""
    bombs = [
        b"\x80\x04" + b"]" * 200_000 + b"a" * 199_999 + b".",
        b"\x80\x04\x8e" + (2**40).to_bytes(8, "little") + b".",
        b"\x80\x04cbuiltins\ngetattr\n.",
        b"cos\nsystem\n(S'touch EXECUTED'\ntR.",
        b"\x80\x04ctorch._utils\n_rebuild_tensor_v2\n.",
        b"\x80\x04ccollections\nOrderedDict\n)R.",
        b"(lp0\n" + b"".join(b"(g0\nl" for _ in range(20)) + b".",
        b"I" + b"9" * 6000 + b"\n.",
        b"L" + b"9" * 6000 + b"L\n.",
    ]
    (checkpoint / TABLE).write_bytes(draw.choice(bombs))


def _manifest(draw: random.Random, checkpoint: Path, outside: Path) -> None:
    path = checkpoint / "manifest.json"
    manifest = json.loads(path.read_text())
    kind = draw.random()
    if kind < 0.5:
        path.write_bytes(hostile.as_json(hostile.changed(draw, manifest, draw.choice([1, 1, 3]))))
    elif kind < 0.7:
        path.write_bytes(hostile.changed_bytes(draw, path.read_bytes()))
    elif kind < 0.85:
        hostile.replace_file(draw, path, outside)
    else:
        path.unlink()


def spoil_manifest(draw: random.Random, checkpoint: Path, outside: Path) -> str:
    """Change the manifest. Half of the time seal it again, where that is still possible."""
    _manifest(draw, checkpoint, outside)
    if draw.random() < 0.5:
        try:
            seal(checkpoint)
        except (OSError, ValueError, TypeError, AttributeError, KeyError, RecursionError):
            return "manifest"
    return "manifest, sealed"


def spoil_files(draw: random.Random, checkpoint: Path, outside: Path) -> str:
    hostile.replace_file(draw, draw.choice(sorted(checkpoint.iterdir())), outside)
    return "a file replaced"


def spoil_folder(draw: random.Random, checkpoint: Path, outside: Path) -> str:
    """Invalid names of checkpoints, and links instead of folders."""
    kind = draw.choice(["link", "name", "file", "replaced"])
    if kind == "link":
        target = outside.parent / "work" / "elsewhere"
        checkpoint.rename(target)
        checkpoint.symlink_to(target)
    elif kind == "name":
        names = ["step-x", "step-", "step--1", "step-" + "9" * 100, "step-0", "step-1e3", "step-\x1b[31m", "step-٣"]
        checkpoint.rename(checkpoint.with_name(draw.choice(names)))
    elif kind == "file":
        (checkpoint.parent / "step-000000099").write_text("x")
    else:
        hostile.replace_file(draw, draw.choice([checkpoint, checkpoint.parent]), outside)
    return f"folder: {kind}"


CHANGES = {
    "a pickle in a bytes entry": _bytes_entry,
    "a pickle as the table": _pickle_payload,
    "a pickle as a tensor": _tensor_payload,
    "a path outside": _other_path,
    "a link": _link,
    "offsets": _numbers,
    "sizes": _sizes,
    "missing tensors": _missing_names,
    "bytes of the table": _table_bytes,
    "bytes of the data": _data_bytes,
    "pickle opcodes": _opcodes,
}
