"""Uploads a working copy to the store; nothing is sent before the files that it refers to."""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stoker.rundir import Saved
from stoker.spec import contract
from stoker.spec.run import ScriptSpec
from stoker.storage import layout
from stoker.storage.download import manifest_text
from stoker.storage.layout import PIECE_BYTES, RemoteRun
from stoker.storage.store import Object, StoreError
from stoker.storage.working_copy import CopyState, WorkingCopy

UNCHANGED_FOR_S = 10.0  # before a file that a user's script writes is sent
# Written atomically: they can be sent at once.
ATOMIC = (contract.SPEC_FILE, contract.DATA_FILE, contract.ORIGINS_FILE, contract.TOKENIZER_DIR)
LATER = (contract.LOCK_FILE, contract.EXIT_FILE)


@dataclass(kw_only=True, slots=True)
class GrowingUpload:
    """A growing file in the store: the last piece starts at `open`, and bytes up to `sent` are uploaded."""

    open: int
    sent: int


class Uploader:
    """Used by two threads: one for checkpoints, one for all other files; at the end by one thread."""

    def __init__(self, copy: WorkingCopy, state: CopyState, remote: RemoteRun, check: Callable[[], None]) -> None:
        self._copy, self._store, self._run = copy, copy.store, copy.run
        self._state = state
        self._check = check
        """Raises StoreError if this process may have lost the lock."""
        self._small_lock = threading.Lock()
        self._spec = self._run.any_spec()
        self._streams = {path: _stream(pieces) for path, pieces in remote.pieces.items()}
        self._exit_is_up = contract.EXIT_FILE in remote.files
        self._stored = {step: {name: o.tag for name, o in files.items()} for step, files in remote.checkpoints.items()}
        """Step -> file -> tag, of checkpoints in the store."""
        self._up: dict[int, int] = {}
        """Step -> mtime_ns of the local manifest, of checkpoints that are complete in the store."""
        self._incomplete: dict[int, int] = {}
        """The same of local checkpoints with a missing file, which cannot be uploaded."""
        for saved in self._run.saved():
            stored = remote.checkpoints.get(saved.step, {}).get(contract.MANIFEST_FILE)
            if stored and manifest_text(copy, saved.step, stored) == (saved.path / contract.MANIFEST_FILE).read_text():
                self._up[saved.step] = _time(saved)

    def begin(self) -> None:
        """Removes the exit record and the unfinished uploads of earlier writers."""
        self._withdraw_exit()
        local = {layout.checkpoint(saved.step) for saved in self._run.saved()}
        with suppress(StoreError):  # the run does not need the permission to abort uploads
            for key in self._store.unfinished(f"{self._copy.name}/"):
                if key.removeprefix(f"{self._copy.name}/").rpartition("/")[0] not in local:
                    self._store.abandon(key)

    def small(self, *, last: bool = False) -> None:
        """Uploads what was appended to growing files, and the other files that have changed."""
        with self._small_lock:
            for path in self._growing():
                self._grow(path)
            self._send_files(last=last)
            self._copy.save(self._state)

    def checkpoint(self) -> bool:
        """Uploads the newest checkpoint that is missing in the store; False if none is missing."""
        pending = (saved for saved in reversed(self._run.saved()) if not self._is_up(saved))
        saved = next((saved for saved in pending if self._incomplete.get(saved.step) != _time(saved)), None)
        if saved is None:
            return False
        self.small()  # a checkpoint in the store needs the ledger of all steps before it
        self._send_checkpoint(saved)
        return True

    def prune(self) -> None:
        """Deletes checkpoints in the store that were pruned locally, or would have been if they were local."""
        whole = self._run.saved()
        if not whole:  # the newest is never pruned: the local files were deleted, and the store's are kept
            return
        local = {saved.step for saved in whole}
        stored = {step for step, names in self._stored.items() if contract.MANIFEST_FILE in names}
        outdated = set(self._up) - local
        if not isinstance(self._spec, ScriptSpec):
            best = whole[-1].manifest.state.progress.best_step
            kept = self._spec.checkpoint.kept(local | stored, best=best)
            outdated |= {step for step in stored - local if step not in kept or step > whole[-1].step}
        outdated |= set(self._stored) - stored - local  # incomplete: their writer died
        for step in outdated & set(self._stored):
            self._require_lock()
            self._delete_checkpoint(step)

    def exit(self) -> None:
        """Uploaded last: its presence shows that the rest is complete."""
        file = self._run.path / contract.EXIT_FILE
        if file.exists():
            self._require_lock()
            self._store.put(self._copy.key(contract.EXIT_FILE), file.read_bytes())
            self._exit_is_up = True
        else:
            self._withdraw_exit()

    def missing(self) -> list[str]:
        """The files that are not in the store."""
        checkpoints = [saved.step for saved in self._run.saved() if not self._is_up(saved)]
        grown = [
            path
            for path in self._growing()
            if self._end(path) > self._streams.get(path, GrowingUpload(open=0, sent=0)).sent
        ]
        files = [path for path in self._files() if self._changed(path)]
        return [*map(layout.checkpoint, checkpoints), *grown, *files]

    def _require_lock(self) -> None:
        """Before each change: checks that this process holds the lock, and that the local run still exists."""
        self._check()
        if not self._run.exists():
            raise StoreError(f"{self._run.path} is gone", remedy="")

    def _paths(self) -> Iterator[str]:
        """All plain files, relative to the run, without hidden ones (unfinished) and links (may point outside)."""
        top = self._run.path
        for folder, folders, names in os.walk(top):
            if Path(folder) == top and not isinstance(self._spec, ScriptSpec) and contract.CHECKPOINTS_DIR in folders:
                folders.remove(contract.CHECKPOINTS_DIR)  # uploaded separately
            folders[:] = [name for name in folders if not name.startswith(".")]
            for path in (Path(folder, name) for name in names if not name.startswith(".")):
                if not path.is_symlink():
                    yield path.relative_to(top).as_posix()

    # growing files

    def _growing(self) -> list[str]:
        """The ledger comes first: no other file in the store may be ahead of it."""
        paths = [path for path in self._paths() if layout.grows(path) and not layout.is_rotated(path)]
        return sorted(paths, key=lambda path: not path.startswith(contract.LEDGER_DIR))

    def _grow(self, path: str) -> None:
        file, stream = self._run.path / path, self._streams.setdefault(path, GrowingUpload(open=0, sent=0))
        known = self._state.inodes.get(path)
        try:
            inode = file.stat().st_ino
        except FileNotFoundError:
            return  # just rotated: a new file will follow
        if known is not None and known != inode:
            self._rotate(path, stream, known)
        self._state.inodes[path] = inode
        self._send(path, file, stream)

    def _rotate(self, path: str, stream: GrowingUpload, inode: int) -> None:
        """A log was rotated: sends the rest of the old file; the new file continues its stream."""
        file = self._run.path / path
        old = next((rotated for rotated in file.parent.glob(f"{file.name}.*") if rotated.stat().st_ino == inode), None)
        if old is not None:
            self._send(path, old, stream)
        stream.open = stream.sent
        self._state.bases[path] = stream.sent

    def _send(self, path: str, file: Path, stream: GrowingUpload) -> None:
        base = self._state.bases.get(path, 0)
        with open(file, "rb") as data:
            end = base + os.fstat(data.fileno()).st_size
            stream.open = max(stream.open, base)
            while end > stream.sent:
                self._require_lock()
                size = min(PIECE_BYTES, end - stream.open)
                data.seek(stream.open - base)
                self._store.put(self._copy.key(layout.piece(path, stream.open)), data.read(size))
                stream.sent = stream.open + size
                stream.open = stream.sent if size == PIECE_BYTES else stream.open

    def _end(self, path: str) -> int:
        return self._state.bases.get(path, 0) + (self._run.path / path).stat().st_size

    # other files

    def _files(self) -> list[str]:
        paths = (path for path in self._paths() if not layout.grows(path) and path.split("/")[0] not in LATER)
        return sorted(paths, key=lambda path: path == contract.SPEC_FILE)  # last: it makes the run exist

    def _send_files(self, *, last: bool) -> None:
        paths = self._files()
        for path in paths:
            with suppress(FileNotFoundError):  # a script's own file, just deleted
                if self._changed(path) and (last or self._is_quiet(path)):
                    self._require_lock()
                    self._send_file(path)
        for path in set(self._state.files) - set(paths) - {contract.EXIT_FILE}:
            self._require_lock()
            self._store.delete([self._copy.key(path)])
            del self._state.files[path]

    def _send_file(self, path: str) -> None:
        file = self._run.path / path
        size, changed = _stat(file)
        self._store.upload(self._copy.key(path), file)
        self._state.files[path] = (self._store.tag(file), size, changed)

    def _changed(self, path: str) -> bool:
        known = self._state.files.get(path)
        return known is None or tuple(known[1:]) != _stat(self._run.path / path)

    def _is_quiet(self, path: str) -> bool:
        return path.split("/")[0] in ATOMIC or time.time() - _stat(self._run.path / path)[1] / 1e9 > UNCHANGED_FOR_S

    def _withdraw_exit(self) -> None:
        if self._exit_is_up:
            self._require_lock()
            self._store.delete([self._copy.key(contract.EXIT_FILE)])
            self._exit_is_up = False
        self._state.files.pop(contract.EXIT_FILE, None)

    # checkpoints

    def _is_up(self, saved: Saved) -> bool:
        return self._up.get(saved.step) == _time(saved)

    def _send_checkpoint(self, saved: Saved) -> None:
        """Uploads the files, then the manifest. Hard links keep the files until then, if the checkpoint is pruned."""
        written = _time(saved)
        staged = self._copy.home / "sending"
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True)
        try:
            for name in (*saved.manifest.files, contract.MANIFEST_FILE):
                os.link(saved.path / name, staged / name)
        except FileNotFoundError:  # pruned before its upload started, or damaged
            self._incomplete[saved.step] = written
            return
        if contract.MANIFEST_FILE in self._stored.get(saved.step, {}):  # from before the run was rewound
            self._delete_checkpoint(saved.step)
        tags = self._stored.setdefault(saved.step, {})
        for name in (*saved.manifest.files, contract.MANIFEST_FILE):
            self._require_lock()
            tag = self._store.tag(staged / name)
            if tags.get(name) != tag:
                self._store.upload(self._copy.key(f"{layout.checkpoint(saved.step)}/{name}"), staged / name)
            tags[name] = tag
        self._up[saved.step] = written
        shutil.rmtree(staged)

    def _delete_checkpoint(self, step: int) -> None:
        keys = {name: self._copy.key(f"{layout.checkpoint(step)}/{name}") for name in self._stored.get(step, {})}
        if contract.MANIFEST_FILE in keys:  # first: a partly deleted checkpoint must not look complete
            self._store.delete([keys.pop(contract.MANIFEST_FILE)])
        self._store.delete(keys.values())
        self._stored.pop(step, None)
        self._up.pop(step, None)


def _stream(pieces: dict[int, Object]) -> GrowingUpload:
    start = max(pieces)
    size = pieces[start].size
    return GrowingUpload(open=start if size < PIECE_BYTES else start + size, sent=start + size)


def _stat(file: Path) -> tuple[int, int]:
    stat = file.stat()
    return stat.st_size, stat.st_mtime_ns


def _time(saved: Saved) -> int:
    try:
        return (saved.path / contract.MANIFEST_FILE).stat().st_mtime_ns
    except FileNotFoundError:
        return 0
