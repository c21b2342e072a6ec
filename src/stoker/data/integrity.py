"""Checks the files of a prepared set against its index: at once, or in the background while a run trains."""

import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from stoker.spec.errors import UserError

BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class SetFile:
    """A file of a prepared set, with its size and hash from the index."""

    folder: Path
    file: str
    bytes: int
    sha256: str

    @property
    def path(self) -> Path:
        return self.folder / self.file


class ChangedFile(UserError):
    """A file of a set has changed since the set was prepared."""

    def __init__(self, file: SetFile, problem: str) -> None:
        super().__init__(
            f"{file.path} {problem}", remedy=f"Restore that file, or delete {file.folder} and prepare the data again"
        )


def check_sizes(folder: Path, sizes: Mapping[str, int]) -> None:
    """Checks sizes only, without reading the files."""
    for name, wanted in sizes.items():
        file = folder / name
        size = file.stat().st_size if file.is_file() else None
        if size != wanted:
            problem = "is missing" if size is None else f"has {size} bytes instead of {wanted}"
            raise UserError(f"{file} {problem}", remedy=f"Delete {folder} and prepare the data again")


def check_hashes(files: Iterable[SetFile], *, stopped: Callable[[], bool] = lambda: False) -> None:
    """Reads every file, until it is stopped."""
    for file in files:
        digest = hashlib.sha256()
        try:
            with open(file.path, "rb", buffering=0) as opened:
                while (block := opened.read(BLOCK_BYTES)) and not stopped():
                    digest.update(block)
        except OSError as e:
            raise ChangedFile(file, f"cannot be read: {e.strerror}") from e
        if not stopped() and digest.hexdigest() != file.sha256:
            raise ChangedFile(file, "is damaged: its sha256 is not the one in index.json")


class BackgroundCheck:
    """Reads the files of a set in background threads, starting at once."""

    def __init__(self, files: Callable[[], list[SetFile]]) -> None:
        """`files` is called at each check: a stream grows."""
        self._files = files
        self._stamps: dict[Path, tuple[int, ...]] = {}
        """File -> inode, size and mtime when it was read."""
        self._closed = threading.Event()
        self._one_at_a_time = threading.Lock()
        self.problem: UserError | None = None
        """Set as soon as a file is seen to have changed."""
        self.bytes = sum(file.bytes for file in files())
        self.first = self.look()

    def look(self) -> Future[None]:
        """Reads files that are new or changed since the last check; afterwards `problem` is valid for all."""
        done: Future[None] = Future()
        # A daemon: a process that fails before it trains must not wait for hours of reading.
        threading.Thread(target=self._run, args=(done,), daemon=True, name="data-check").start()
        return done

    def close(self) -> None:
        self._closed.set()

    def _run(self, done: Future[None]) -> None:
        try:
            with self._one_at_a_time:
                self._look()
        except BaseException as e:
            done.set_exception(e)
        else:
            done.set_result(None)

    def _look(self) -> None:
        for file in self._files():
            if self.problem or self._closed.is_set():
                return
            try:
                self._check(file)
            except ChangedFile as e:
                self.problem = e

    def _check(self, file: SetFile) -> None:
        try:
            status = file.path.stat()
        except OSError as e:
            raise ChangedFile(file, f"cannot be read: {e.strerror}") from e
        stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
        if self._stamps.get(file.path) != stamp:
            check_hashes([file], stopped=self._closed.is_set)
            self._stamps[file.path] = stamp  # taken before reading
