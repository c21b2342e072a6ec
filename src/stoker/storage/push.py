"""From the copy here to the store: never a thing before what it rests on."""

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
from stoker.storage.copy import Copy, State
from stoker.storage.fetch import manifest_text
from stoker.storage.layout import PIECE, Remote
from stoker.storage.store import Object, StoreError

QUIET = 10.0  # seconds that a file of a script's own must stay as it is before it is sent
# Written in one go: never seen half done.
AT_ONCE = (contract.SPEC_FILE, contract.DATA_FILE, contract.ORIGINS_FILE, contract.TOKENIZER_DIR)
LATER = (contract.LOCK_FILE, contract.EXIT_FILE)


@dataclass(kw_only=True, slots=True)
class Stream:
    """A growing file in the store: the piece that is not full yet begins at `open`, and all up to `sent` is up."""

    open: int
    sent: int


class Push:
    """Used by two threads, one for checkpoints and one for all else, and by one at the end."""

    def __init__(self, copy: Copy, state: State, remote: Remote, check: Callable[[], None]) -> None:
        self._copy, self._store, self._run = copy, copy.store, copy.run
        self._state = state
        self._check = check
        """Raises StoreError while it is not certain that the run is ours to write."""
        self._alone = threading.Lock()
        self._script = isinstance(self._run.any_spec(), ScriptSpec)
        self._streams = {path: _stream(pieces) for path, pieces in remote.pieces.items()}
        self._exit_is_up = contract.EXIT_FILE in remote.files
        self._there = {step: {name: o.tag for name, o in files.items()} for step, files in remote.checkpoints.items()}
        """Step -> file -> tag, of checkpoints in the store."""
        self._up: dict[int, int] = {}
        """Step -> mtime_ns of the manifest here, of checkpoints that are whole in the store."""
        for saved in self._run.saved():
            there = remote.checkpoints.get(saved.step, {}).get(contract.MANIFEST_FILE)
            if there and manifest_text(copy, saved.step, there) == (saved.path / contract.MANIFEST_FILE).read_text():
                self._up[saved.step] = _time(saved)

    def begin(self) -> None:
        """Nothing that an earlier writer left undone, and no word of how it ended."""
        self._withdraw_exit()
        here = {layout.checkpoint(saved.step) for saved in self._run.saved()}
        with suppress(StoreError):  # tidying up: a right to it is not needed for the run
            for key in self._store.unfinished(f"{self._copy.name}/"):
                if key.removeprefix(f"{self._copy.name}/").rpartition("/")[0] not in here:
                    self._store.abandon(key)

    def small(self, *, last: bool = False) -> None:
        """What has been added to growing files, and the other files that have changed."""
        with self._alone:
            for path in self._growing():
                self._grow(path)
            self._send_files(last=last)
            self._copy.save(self._state)

    def checkpoint(self) -> bool:
        """Send the newest checkpoint that is not up; False when there is none."""
        saved = next((saved for saved in reversed(self._run.saved()) if self._up.get(saved.step) != _time(saved)), None)
        if saved is None:
            return False
        self.small()  # a checkpoint in the store rests on the ledger of all steps before it
        self._send_checkpoint(saved)
        return True

    def prune(self) -> None:
        """Delete what was pruned here, and what would have been if it were here."""
        whole = self._run.saved()
        if not whole:  # the newest is never pruned: somebody else has been here, and the store's are left alone
            return
        here = {saved.step for saved in whole}
        there = {step for step, names in self._there.items() if contract.MANIFEST_FILE in names}
        gone = set(self._up) - here
        spec = self._run.any_spec()
        if not isinstance(spec, ScriptSpec):
            best = whole[-1].manifest.state.progress.best_step
            kept = spec.checkpoint.kept(here | there, best=best)
            gone |= {step for step in there - here if step not in kept or step > whole[-1].step}
        gone |= set(self._there) - there - here  # sent in part, by somebody who did not live to end it
        for step in gone & set(self._there):
            self._be_sure()
            self._delete_checkpoint(step)

    def exit(self) -> None:
        """Last of all: who reads it knows that the rest is there."""
        file = self._run.path / contract.EXIT_FILE
        if file.exists():
            self._be_sure()
            self._store.put(self._copy.key(contract.EXIT_FILE), file.read_bytes())
            self._exit_is_up = True
        else:
            self._withdraw_exit()

    def missing(self) -> list[str]:
        """What is not in the store."""
        checkpoints = [s.step for s in self._run.saved() if self._up.get(s.step) != _time(s)]
        grown = [
            path for path in self._growing() if self._end(path) > self._streams.get(path, Stream(open=0, sent=0)).sent
        ]
        files = [path for path in self._files() if self._changed(path)]
        return [*map(layout.checkpoint, checkpoints), *grown, *files]

    def _be_sure(self) -> None:
        """Before each change: the run is ours, and its copy here has not been deleted under our hands."""
        self._check()
        if not self._run.exists():
            raise StoreError(f"{self._run.path} is gone", remedy="")

    def _paths(self) -> Iterator[str]:
        """All plain files, relative to the run; hidden ones are in the making, and a link may lead out of it."""
        top = self._run.path
        for folder, folders, names in os.walk(top):
            if Path(folder) == top and not self._script and contract.CHECKPOINTS_DIR in folders:
                folders.remove(contract.CHECKPOINTS_DIR)  # they have a way of their own
            folders[:] = [name for name in folders if not name.startswith(".")]
            for path in (Path(folder, name) for name in names if not name.startswith(".")):
                if not path.is_symlink():
                    yield path.relative_to(top).as_posix()

    # growing files

    def _growing(self) -> list[str]:
        """The ledger first: of all that is here it must never lag behind."""
        found = [path for path in self._paths() if layout.grows(path) and not layout.is_rotated(path)]
        return sorted(found, key=lambda path: not path.startswith(contract.LEDGER_DIR))

    def _grow(self, path: str) -> None:
        file, stream = self._run.path / path, self._streams.setdefault(path, Stream(open=0, sent=0))
        known = self._state.inodes.get(path)
        try:
            inode = file.stat().st_ino
        except FileNotFoundError:
            return  # rotated this moment: there will be a new one
        if known is not None and known != inode:
            self._turn_over(path, stream, known)
        self._state.inodes[path] = inode
        self._send(path, file, stream)

    def _turn_over(self, path: str, stream: Stream, inode: int) -> None:
        """A log was rotated: what was not sent of the old one, then the new one as its continuation."""
        file = self._run.path / path
        old = next((other for other in file.parent.glob(f"{file.name}.*") if other.stat().st_ino == inode), None)
        if old is not None:
            self._send(path, old, stream)
        stream.open = stream.sent
        self._state.bases[path] = stream.sent

    def _send(self, path: str, file: Path, stream: Stream) -> None:
        base = self._state.bases.get(path, 0)
        with open(file, "rb") as data:
            end = base + os.fstat(data.fileno()).st_size
            stream.open = max(stream.open, base)
            while end > stream.sent:
                self._be_sure()
                size = min(PIECE, end - stream.open)
                data.seek(stream.open - base)
                self._store.put(self._copy.key(layout.piece(path, stream.open)), data.read(size))
                stream.sent = stream.open + size
                stream.open = stream.sent if size == PIECE else stream.open

    def _end(self, path: str) -> int:
        return self._state.bases.get(path, 0) + (self._run.path / path).stat().st_size

    # other files

    def _files(self) -> list[str]:
        found = (path for path in self._paths() if not layout.grows(path) and path.split("/")[0] not in LATER)
        return sorted(found, key=lambda path: path == contract.SPEC_FILE)  # last: it makes the run exist

    def _send_files(self, *, last: bool) -> None:
        paths = self._files()
        for path in paths:
            with suppress(FileNotFoundError):  # a script's own file, deleted this moment
                if self._changed(path) and (last or self._is_quiet(path)):
                    self._be_sure()
                    self._send_file(path)
        for path in set(self._state.files) - set(paths) - {contract.EXIT_FILE}:
            self._be_sure()
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
        return path.split("/")[0] in AT_ONCE or time.time() - _stat(self._run.path / path)[1] / 1e9 > QUIET

    def _withdraw_exit(self) -> None:
        if self._exit_is_up:
            self._be_sure()
            self._store.delete([self._copy.key(contract.EXIT_FILE)])
            self._exit_is_up = False
        self._state.files.pop(contract.EXIT_FILE, None)

    # checkpoints

    def _send_checkpoint(self, saved: Saved) -> None:
        """Its files, then its manifest. Links keep them here until they are up, should it be pruned meanwhile."""
        written = _time(saved)
        staged = self._copy.home / "sending"
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True)
        try:
            for name in (*saved.manifest.files, contract.MANIFEST_FILE):
                os.link(saved.path / name, staged / name)
        except FileNotFoundError:
            return  # pruned before it was begun
        if contract.MANIFEST_FILE in self._there.get(
            saved.step, {}
        ):  # of another history of the run, which was sent back
            self._delete_checkpoint(saved.step)
        there = self._there.setdefault(saved.step, {})
        for name in (*saved.manifest.files, contract.MANIFEST_FILE):
            self._be_sure()
            tag = self._store.tag(staged / name)
            if there.get(name) != tag:
                self._store.upload(self._copy.key(f"{layout.checkpoint(saved.step)}/{name}"), staged / name)
            there[name] = tag
        self._up[saved.step] = written
        shutil.rmtree(staged)

    def _delete_checkpoint(self, step: int) -> None:
        keys = {name: self._copy.key(f"{layout.checkpoint(step)}/{name}") for name in self._there.get(step, {})}
        if contract.MANIFEST_FILE in keys:  # first: what is half deleted must not look whole
            self._store.delete([keys.pop(contract.MANIFEST_FILE)])
        self._store.delete(keys.values())
        self._there.pop(step, None)
        self._up.pop(step, None)


def _stream(pieces: dict[int, Object]) -> Stream:
    start = max(pieces)
    size = pieces[start].size
    return Stream(open=start if size < PIECE else start + size, sent=start + size)


def _stat(file: Path) -> tuple[int, int]:
    stat = file.stat()
    return stat.st_size, stat.st_mtime_ns


def _time(saved: Saved) -> int:
    try:
        return (saved.path / contract.MANIFEST_FILE).stat().st_mtime_ns
    except FileNotFoundError:
        return 0
