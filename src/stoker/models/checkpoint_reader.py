"""Reads tensors from a checkpoint that is not trusted.

torch stores a checkpoint's table of contents as a pickle, and a pickle can call any function. An entry of the table may
also be an arbitrary object, which torch unpickles without limits. A run directory may come from another user, so only
the classes that a table of tensors needs are unpickled, and only files that the manifest lists are opened.
"""

import errno
import io
import os
import pickle
import zipfile
from enum import Enum
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.state_dict_loader import load

from stoker.rundir.checkpoint import CheckpointManifest, read_manifest
from stoker.spec.files import read_regular

TABLE = ".metadata"
MAX_TABLE_BYTES = 1 << 30  # about 200 per tensor and worker
MAX_TUPLE_DEPTH = 8  # hashing 100,000 nested tuples crashes the process
CLASSES = {
    filesystem.__name__: {"_StorageInfo"},
    metadata.__name__: {
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "pathlib": {"PosixPath"},
    "pathlib._local": {"PosixPath"},  # in Python 3.13
}
SLICE = -1  # takes all values down to the last mark
OPCODES = {  # written by torch: bytes of the argument, values popped from the stack, whether a value is pushed
    **dict.fromkeys((pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.EMPTY_DICT, pickle.EMPTY_LIST), (0, 0, True)),
    **dict.fromkeys((pickle.BININT1, pickle.BINGET, pickle.SHORT_BINUNICODE, pickle.LONG1), (1, 0, True)),
    **dict.fromkeys((pickle.BININT, pickle.LONG_BINGET, pickle.BINUNICODE), (4, 0, True)),
    **dict.fromkeys((pickle.NEWOBJ, pickle.REDUCE, pickle.STACK_GLOBAL), (0, 2, True)),
    **dict.fromkeys((pickle.APPENDS, pickle.SETITEMS), (0, SLICE, False)),
    **dict.fromkeys((pickle.APPEND, pickle.BUILD), (0, 1, False)),
    **dict.fromkeys((pickle.MEMOIZE, pickle.MARK), (0, 0, False)),
    pickle.SETITEM: (0, 2, False),
    pickle.BININT2: (2, 0, True),
    pickle.BINFLOAT: (8, 0, True),
    pickle.PROTO: (1, 0, False),
    pickle.FRAME: (8, 0, False),
    pickle.EMPTY_TUPLE: (0, 0, True),
    pickle.TUPLE1: (0, 1, True),
    pickle.TUPLE2: (0, 2, True),
    pickle.TUPLE3: (0, 3, True),
    pickle.TUPLE: (0, SLICE, True),
}
SIZED = {pickle.SHORT_BINUNICODE, pickle.BINUNICODE, pickle.LONG1}  # the argument says how many bytes follow
GETS = {pickle.BINGET, pickle.LONG_BINGET}
TUPLES = {pickle.EMPTY_TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.TUPLE}


class Untrusted(pickle.UnpicklingError):
    """A checkpoint that contains anything but tensors."""


def read_tensors(
    tensors: dict[str, Any], folder: Path, *, group: dist.ProcessGroup | None = None, no_dist: bool = False
) -> None:
    """Fill the tensors from a checkpoint. `no_dist`: without a process group."""
    load(tensors, storage_reader=CheckpointReader(folder), planner=TensorsOnly(), process_group=group, no_dist=no_dist)


class TensorsOnly(DefaultLoadPlanner):
    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:  # noqa: ARG002 (torch's name)
        raise Untrusted(f"{read_item.storage_index.fqn} is not a tensor")


class CheckpointReader(FileSystemReader):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder
        self._problem: Exception | None = None

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:
        """torch only prints errors raised here: they are raised by the next call, which all workers make."""
        try:
            return self._read_table()
        except Exception as e:
            self._problem = Untrusted(str(e)) if isinstance(e, ValueError) else e
            return Metadata({})

    def set_up_storage_reader(self, metadata: Metadata, *args: Any, **kwargs: Any) -> None:
        if self._problem is not None:
            raise self._problem
        super().set_up_storage_reader(metadata, *args, **kwargs)

    def _read_table(self) -> Metadata:
        manifest = read_manifest(self.folder)
        table = read_table(_listed(self.folder, TABLE, manifest))
        for info in table.storage_data.values():
            _listed(self.folder, info.relative_path, manifest)
        table.storage_meta = StorageMeta()
        table.storage_meta.load_id = self.load_id
        return table

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Any:
        for item in plan.items:
            info = self.storage_data[item.storage_index]
            with open(self.folder / info.relative_path, "rb", buffering=0) as file:
                refuse_compressed(Slice(file, info.offset, info.length))
        return super().read_data(plan, planner)


def read_table(path: Path) -> Metadata:
    """The table of contents. Raises Untrusted when it lists anything but tensors."""
    data = read_regular(path, max_bytes=MAX_TABLE_BYTES, follow_links=False)
    _check_opcodes(data)
    try:
        table = TableOfContents(io.BytesIO(data)).load()
    except Untrusted:
        raise
    except Exception as e:  # raised by a class with wrong arguments
        raise Untrusted(f"{TABLE} cannot be read: {type(e).__name__}") from e
    if not isinstance(table, Metadata) or not _is_of_tensors(table):
        raise Untrusted(f"{TABLE} is not a table of tensors")
    return table


class TableOfContents(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        number = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if number or name in CLASSES.get(module, ()):
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return member
        raise Untrusted(f"a checkpoint does not need {module}.{name}")


def member(kind: object, name: str) -> Enum:
    """In place of `getattr`: Python before 3.11.4 pickles a member of an Enum as a call of it."""
    if not (isinstance(kind, type) and issubclass(kind, Enum)):
        raise Untrusted(f"a checkpoint does not need builtins.getattr of {kind}")
    return kind[name]


class Slice(io.RawIOBase):
    """A part of a file, as a file."""

    def __init__(self, file: io.FileIO, start: int, length: int) -> None:
        self._file, self._start, self._length, self._at = file, start, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        if start + offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._at = start + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._length - self._at)
        self._file.seek(self._start + self._at)
        data = self._file.read(left if size < 0 else min(size, left)) or b""
        self._at += len(data)
        return data


def refuse_compressed(file: Any) -> None:
    """torch writes tensors uncompressed. A small compressed file could expand to gigabytes."""
    try:
        with zipfile.ZipFile(file) as archive:
            packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist())
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError) as e:
        raise Untrusted("a tensor's bytes are not what torch writes") from e
    if packed:
        raise Untrusted("a tensor is compressed, which torch does not do")


def _is_of_tensors(table: Metadata) -> bool:
    entries, infos = getattr(table, "state_dict_metadata", None), getattr(table, "storage_data", None)
    return (
        isinstance(entries, dict)
        and isinstance(infos, dict)
        and all(isinstance(name, str) and isinstance(entry, TensorStorageMetadata) for name, entry in entries.items())
        and all(isinstance(index, MetadataIndex) and _is_plain(info) for index, info in infos.items())
    )


def _is_plain(info: object) -> bool:
    path, offset, length = (getattr(info, name, None) for name in ("relative_path", "offset", "length"))
    sizes = all(isinstance(number, int) and 0 <= number < 2**63 for number in (offset, length))
    return isinstance(path, str) and sizes and not getattr(info, "transform_descriptors", None)


def _listed(folder: Path, name: str, manifest: CheckpointManifest) -> Path:
    if name not in manifest.files:  # its names are plain: none leads out of the folder
        raise Untrusted(f"{TABLE} names {name}, which the manifest does not list")
    if (folder / name).is_symlink():
        raise Untrusted(f"{name} is a link")
    return folder / name


def _check_opcodes(data: bytes) -> None:
    """Refuse what would crash the unpickler: a memo of billions of entries, and deeply nested tuples.

    Walks the opcodes as the unpickler does, with the depth of a tuple in place of every value.
    """
    stack: list[int] = []
    marks: list[int] = []
    memo: list[int] = []
    at = 0
    try:
        while (opcode := data[at : at + 1]) != pickle.STOP:
            width, taken, leaves = OPCODES[opcode]
            argument = int.from_bytes(data[at + 1 : at + 1 + width], "little")
            at += 1 + width + (argument if opcode in SIZED else 0)
            if opcode == pickle.MEMOIZE:
                memo.append(stack[-1])
            elif opcode == pickle.MARK:
                marks.append(len(stack))
            start = marks.pop() if taken is SLICE else len(stack) - taken
            depth = memo[argument] if opcode in GETS else 0
            if opcode in TUPLES:
                depth = 1 + max(stack[start:], default=0)
            del stack[start:]
            if leaves:
                stack.append(depth)
            if depth > MAX_TUPLE_DEPTH:
                raise Untrusted(f"{TABLE} is nested too deep")
    except (KeyError, IndexError) as e:
        raise Untrusted(f"{TABLE} is not what torch writes") from e
