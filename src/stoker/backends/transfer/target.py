"""A folder that receives files: partial files, a journal of the complete ones, and a lock."""

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stoker.backends.transfer.frames import Message
from stoker.backends.transfer.names import MANIFEST, WORK, check_name, under
from stoker.spec.errors import UserError

FSYNC_BYTES = 1 << 20  # larger files are flushed to disk before they count; small files are too many
LOCK_POLL_S = 1.0
ALL = "all"
JOURNAL = "journal.jsonl"

Entry = dict[str, Any]


class PartialFile:
    """A file that is being received."""

    def __init__(self, path: Path, digest: "hashlib._Hash", start: int) -> None:
        self._file = open(path, "r+b" if start else "wb", buffering=0)  # noqa: SIM115 (closed by the with)
        self._file.truncate(start)
        self._file.seek(start)
        self._digest = digest
        self.path = path

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) or 0 :]
        self._digest.update(data)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._file.tell() >= FSYNC_BYTES:
            os.fsync(self._file.fileno())
        self._file.close()


class Target:
    def __init__(self, root: Path, offer: Message) -> None:
        self.key: str | None = offer["key"]
        self.sizes: dict[str, int] = {check_name(name): size for name, (size, _) in offer["files"].items()}
        self._executables = {name for name, (_, executable) in offer["files"].items() if executable}
        self._folders = [check_name(name) for name in offer["folders"]]
        self._deleted = [check_name(name) for name in offer["gone"]]
        self._base = offer["base"] and check_name(offer["base"])
        self._root = root
        into = under(root, root / offer["into"])
        inside = offer["into"].endswith("/") or into.is_dir()
        self._renamed = ""
        if offer["single"]:
            self.folder = into if inside else into.parent
            self._renamed = "" if inside else check_name(into.name)
            self.work = self.folder / WORK / _digest((self._renamed or self._base).encode())[:16]
        else:
            below = inside and self._base and not offer.get("exact") and not self._was_begun(into)
            self.folder = into / self._base if below else into
            self.work = self.folder / WORK / ALL
        if self.folder.exists() and not self.folder.is_dir():
            raise UserError(f"{self.folder} is a file, and should be a folder", remedy="Name another path")
        self._journal: dict[str, Entry] = {}
        self._digests: dict[str, hashlib._Hash] = {}

    @property
    def bytes(self) -> int:
        return sum(self.sizes.values())

    def path(self, name: str) -> Path:
        return under(self._root, self.folder / (self._renamed or name))

    def is_complete(self) -> bool:
        """It has a manifest with this key, and every file has the size in it."""
        if self.key is None:
            return False
        try:
            record: Entry = json.loads((self.folder / MANIFEST).read_text())
            return record["key"] == self.key and all(
                record["files"][name]["bytes"] == size == self.path(name).stat().st_size
                for name, size in self.sizes.items()
            )
        except (OSError, ValueError, KeyError, TypeError):
            return False

    @contextmanager
    def locked(self, wait: Callable[[Path], None]) -> Iterator[None]:
        """One transfer to a folder at a time. The second may find that nothing is left to do."""
        while True:
            self.work.mkdir(parents=True, exist_ok=True)
            with open(self.work / "lock", "a") as file:
                if not _lock(file.fileno()):
                    wait(self.folder)
                    time.sleep(LOCK_POLL_S)
                    continue
                if not _is_at(file.fileno(), self.work / "lock"):
                    continue  # its last holder finished and deleted it
                self._read_journal()
                yield
                return

    def wanted(self) -> list[tuple[str, int, str]]:
        """Names, with the bytes of each that are already here, and their digest."""
        if self.is_complete():
            return []
        (self.folder / MANIFEST).unlink(missing_ok=True)
        return [state for name in self.sizes if (state := self._state(name)) is not None]

    def part(self, name: str, start: int) -> PartialFile:
        digest = self._digests.pop(name, None) if start else None
        return PartialFile(self._part(name), digest or hashlib.sha256(), start)

    def put(self, name: str, part: PartialFile, *, digest: str) -> bool:
        """Renames a received file to its final name. False if it is not what was sent."""
        if part.digest != digest or part.path.stat().st_size != self.sizes[name]:
            part.path.unlink()
            return False
        self._put(name, part.path, digest)
        return True

    def keep(self, name: str) -> None:
        """The local file equals the remote file."""
        digest = self._digests.get(name)  # of the part if there is one, unless the journal has a complete file
        if digest and self._part(name).exists():
            self._put(name, self._part(name), digest.hexdigest())

    def finish(self) -> None:
        for name in self._folders:
            under(self._root, self.folder / name).mkdir(parents=True, exist_ok=True)
        for name in self._deleted:
            under(self._root, self.folder / name).unlink(missing_ok=True)
        if self.key is not None and not self.is_complete():
            self._write_manifest()
        shutil.rmtree(self.work, ignore_errors=True)
        with suppress(OSError):
            self.work.parent.rmdir()

    def _was_begun(self, folder: Path) -> bool:
        """An earlier try of the same copy created this folder, or it has the right name."""
        return self._base in (folder.name, unfinished(folder))

    def _state(self, name: str) -> tuple[str, int, str] | None:
        """None if it is complete."""
        size, entry, part = self.sizes[name], self._journal.get(name), self._part(name)
        if entry and entry["bytes"] == size:
            return None if self.key else (name, size, entry["sha256"])
        with suppress(OSError):
            if part.stat().st_size <= size:
                return self._digested(name, part)
        path = self.path(name)
        with suppress(OSError):
            if not self.key and path.is_file() and not path.is_symlink() and path.stat().st_size == size:
                return self._digested(name, path)
        return name, 0, ""

    def _digested(self, name: str, path: Path) -> tuple[str, int, str]:
        with open(path, "rb") as file:
            digest = hashlib.sha256()
            while data := file.read(1 << 20):
                digest.update(data)
            self._digests[name] = digest
            return name, file.tell(), digest.hexdigest()

    def _part(self, name: str) -> Path:
        return self.work / f"{_digest(name.encode(errors='surrogateescape'))[:32]}.part"

    def _put(self, name: str, part: Path, digest: str) -> None:
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        part.chmod(0o755 if name in self._executables else 0o644)
        os.replace(part, under(self._root, path))
        stat = path.stat()
        entry = {"name": name, "bytes": stat.st_size, "mtime": stat.st_mtime_ns, "sha256": digest}
        self._journal[name] = entry
        with open(self.work / JOURNAL, "a") as file:
            file.write(json.dumps(entry) + "\n")

    def _read_journal(self) -> None:
        """The entries of files that have not changed since. A journal with another key is discarded."""
        file, head = self.work / JOURNAL, {"key": self.key, "base": self._base}
        lines = list(_records(file))
        if not lines or lines[0] != head:
            file.write_text(json.dumps(head) + "\n")
            return
        for entry in lines[1:]:
            with suppress(OSError, KeyError):
                stat = self.path(entry["name"]).stat()
                if (stat.st_size, stat.st_mtime_ns) == (entry["bytes"], entry["mtime"]):
                    self._journal[entry["name"]] = entry

    def _write_manifest(self) -> None:
        names = sorted(self.sizes)
        files = {name: {key: self._journal[name][key] for key in ("bytes", "sha256")} for name in names}
        temporary = self.work / MANIFEST
        with open(temporary, "w") as file:
            file.write(json.dumps({"key": self.key, "files": files}, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.folder / MANIFEST)


def unfinished(folder: Path) -> str | None:
    """The name of what was being copied to this folder when the transfer was interrupted."""
    head = next(_records(folder / WORK / ALL / JOURNAL), None)
    return head.get("base") if isinstance(head, dict) else None


def _records(path: Path) -> Iterator[Entry]:
    with suppress(OSError), open(path) as file:
        for line in file:
            with suppress(ValueError):  # truncated by a kill
                yield json.loads(line)


def _lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # the file system does not support locks
    return True


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.fstat(file).st_ino == path.stat().st_ino
    except OSError:
        return False


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
