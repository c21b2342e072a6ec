"""Whether the files of a prepared set are what its index says: at once, or in the background while a run trains."""

import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from stoker.spec.errors import UserError

BLOCK = 1 << 20  # bytes that are read at once


@dataclass(frozen=True, kw_only=True, slots=True)
class SetFile:
    """A file of a prepared set, and what its index says of it."""

    folder: Path
    file: str
    bytes: int
    sha256: str

    @property
    def path(self) -> Path:
        return self.folder / self.file


class Changed(UserError):
    """A file of a set is not what it was when the set was prepared."""

    def __init__(self, file: SetFile, how: str) -> None:
        super().__init__(
            f"{file.path} {how}", remedy=f"Restore that file, or delete {file.folder} and prepare the data again"
        )


def check_sizes(folder: Path, sizes: Mapping[str, int]) -> None:
    """Costs a look at each file, whatever its length."""
    for name, wanted in sizes.items():
        file = folder / name
        size = file.stat().st_size if file.is_file() else None
        if size != wanted:
            found = "is missing" if size is None else f"has {size} bytes, and should have {wanted}"
            raise UserError(f"{file} {found}", remedy=f"Delete {folder} and prepare the data again")


def check_hashes(files: Iterable[SetFile], *, stopped: Callable[[], bool] = lambda: False) -> None:
    """Reads every file, unless it is stopped before."""
    for file in files:
        digest = hashlib.sha256()
        try:
            with open(file.path, "rb", buffering=0) as opened:
                while (block := opened.read(BLOCK)) and not stopped():
                    digest.update(block)
        except OSError as e:
            raise Changed(file, f"cannot be read: {e.strerror}") from e
        if not stopped() and digest.hexdigest() != file.sha256:
            raise Changed(file, "is damaged: its sha256 is not the one in index.json")


class BackgroundCheck:
    """Reads the files of a set in threads of its own, from the moment that it is made."""

    def __init__(self, files: Callable[[], list[SetFile]]) -> None:
        """`files` are asked for at each look: a stream has more of them with time."""
        self._files = files
        self._stamps: dict[Path, tuple[int, ...]] = {}
        """Of each file that was read: what changes when it is written to."""
        self._closed = threading.Event()
        self._one_at_a_time = threading.Lock()
        self.problem: UserError | None = None
        """Set as soon as a file turns out to have changed."""
        self.bytes = sum(file.bytes for file in files())
        self.first = self.look()

    def look(self) -> Future[None]:
        """Read what has been added or written to since the last look; once that is done, `problem` holds for all."""
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
            except Changed as e:
                self.problem = e

    def _check(self, file: SetFile) -> None:
        try:
            status = file.path.stat()
        except OSError as e:
            raise Changed(file, f"cannot be read: {e.strerror}") from e
        stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
        if self._stamps.get(file.path) != stamp:
            check_hashes([file], stopped=self._closed.is_set)
            self._stamps[file.path] = stamp  # as it was before it was read
