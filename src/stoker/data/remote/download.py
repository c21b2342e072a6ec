"""`python3 -m stoker.data.remote.download URL FOLDER …`: from an object store or the web to a folder.

It runs in a pod that mounts the folder, so that large data need not pass through a laptop. It prints its progress
as lines of JSON; run again after a kill, it resumes where it stopped.
"""

import argparse
import fcntl
import hashlib
import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.data.archives import TARS, ZIPS, extract, is_archive, unwritable
from stoker.data.remote import scheme_of
from stoker.data.remote.addresses import shown
from stoker.data.remote.transfer import Interrupted, RemoteError, copy
from stoker.rundir import write_json
from stoker.spec import contract
from stoker.spec.bounded import read_json
from stoker.spec.errors import StokerError, UserError
from stoker.storage.store import Store, StoreUnreachable, open_store

WORK_FOLDER = ".stoker-download"  # partial files, and records of finished ones
PROGRESS_EVERY_S = 0.5
MARGIN_BYTES = 16 << 20  # left free


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteFile:
    url: str
    name: str
    size: int
    version: str
    """Changes with the content; passed on to read exactly this content."""
    md5: str | None = None
    store: Store | None = None
    """None: it is read by its scheme."""

    @property
    def shown(self) -> str:
        """The URL without its secrets."""
        return shown(self.url)

    def read(self, start: int) -> Iterator[bytes]:
        if self.store is None:
            yield from scheme_of(self.url).read(self.url, start, self.version)
            return
        try:
            yield from self.store.read(self.name, start, self.version)
        except StoreUnreachable as e:
            raise Interrupted(e.problem) from e


def download(
    url: str, folder: Path, *, unpack: bool, anonymous: bool = False, region: str | None = None
) -> Iterator[dict[str, object]]:
    """Yields its progress: phase, done, total, file."""
    sources = find(url, anonymous=anonymous, region=region)
    if unpack and (not_archive := next((source.name for source in sources if not is_archive(source.name)), None)):
        raise UserError(
            f"{not_archive} is not an archive", remedy=f"Leave --extract out; archives end in {' '.join(TARS + ZIPS)}"
        )
    try:
        work = folder / WORK_FOLDER
        work.mkdir(parents=True, exist_ok=True)
        with open(work / "lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # a second download of the same file waits, and then finds it complete
            for source in sources:
                yield from _download_file(source, folder, work, unpack=unpack)
    except OSError as e:
        raise unwritable(folder, e) from e


def find(url: str, *, anonymous: bool = False, region: str | None = None) -> list[RemoteFile]:
    """The object of that name, or all objects below it."""
    if not url.startswith(("s3://", "gs://")):
        return [
            RemoteFile(url=file_url, name=name, size=size, version=tag)
            for file_url, name, size, tag in scheme_of(url).find(url)
        ]
    parent, _, name = url.rstrip("/").rpartition("/")
    if not parent.endswith("/"):  # otherwise the URL is a whole bucket
        store = open_store(parent, anonymous=anonymous, region=region)
        if object := store.look(name):
            return [
                RemoteFile(url=url, name=name, size=object.size, version=object.version, md5=object.md5, store=store)
            ]
    inside = open_store(url, anonymous=anonymous, region=region)
    objects = {key: object for key, object in inside.list().objects.items() if not key.endswith("/")}
    if not objects:
        raise RemoteError(f"there is no {url}", remedy="Check the bucket and the key")
    return [
        RemoteFile(url=f"{inside.url}/{key}", name=key, size=object.size, version=object.version, store=inside)
        for key, object in objects.items()
    ]


def _download_file(source: RemoteFile, folder: Path, work: Path, *, unpack: bool) -> Iterator[dict[str, object]]:
    done = work / f"{_digest(source.shown)}.json"
    archive = work / f"{_digest(source.url, source.version, source.size)}.part"
    target = folder / _safe(source.name)
    record = {"url": source.shown, "version": source.version, "bytes": source.size, "unpacked": unpack}
    if _record(done) == record and (unpack or (target.is_file() and target.stat().st_size == source.size)):
        yield {"phase": "there", "file": source.name, "done": source.size, "total": source.size}
        return
    partial = archive.stat().st_size if archive.is_file() else 0
    _check_room(source, partial, folder, unpack=unpack)
    fetched = partial if partial <= source.size else 0
    for size in copy(source.read, archive, size=source.size, name=source.shown):
        fetched += size
        yield {"phase": "fetching", "file": source.name, "done": fetched, "total": source.size}
    if source.md5 and _md5(archive) != source.md5:
        archive.unlink()
        raise UserError(f"{source.shown} was damaged on the way", remedy="Run the same command again")
    if unpack:
        files = unpacked = 0
        for size in extract(archive, folder, name=source.name):
            files, unpacked = files + 1, unpacked + size
            yield {"phase": "unpacking", "file": source.name, "done": unpacked, "total": 0, "files": files}
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        archive.replace(target)
    write_json(done, record)
    archive.unlink(missing_ok=True)
    yield {"phase": "done", "file": source.name, "done": source.size, "total": source.size}


def _digest(*parts: object) -> str:
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:32]


def _record(file: Path) -> Any:
    """What was downloaded last from a URL."""
    try:
        return read_json(file)
    except (FileNotFoundError, ValueError):
        return None


def _safe(name: str) -> str:
    if name.startswith("/") or {"", ".", ".."} & set(name.split("/")) or "\0" in name:
        raise UserError(f"{name!r} is not a valid file name", remedy="Fetch the others by name")
    return name


def _check_room(source: RemoteFile, partial: int, folder: Path, *, unpack: bool) -> None:
    """An archive is unpacked beside itself; the size of its content is only known while unpacking."""
    needed = source.size - min(partial, source.size) + (source.size if unpack else 0)
    free = shutil.disk_usage(folder).free
    if needed + MARGIN_BYTES > free:
        raise UserError(
            f"{source.shown} needs {needed / 2**30:.2f} GiB in {folder}, and only {free / 2**30:.2f} GiB are free",
            remedy="Free some space, or use a larger volume",
        )


def _md5(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="stoker.data.remote.download")
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--extract", action="store_true")
    parser.add_argument("--anonymous", action="store_true")
    parser.add_argument("--region")
    args = parser.parse_args(argv)
    printed_at, phase = 0.0, ""
    try:
        for step in download(args.url, args.folder, unpack=args.extract, anonymous=args.anonymous, region=args.region):
            if (
                step["phase"] != phase
                or step["phase"] in ("there", "done")
                or time.monotonic() - printed_at > PROGRESS_EVERY_S
            ):
                printed_at, phase = time.monotonic(), str(step["phase"])
                print(json.dumps(step), flush=True)
    except StokerError as e:
        print(f"stoker: {e}", file=sys.stderr)
        return contract.EXIT_USER
    except BrokenPipeError:
        return contract.EXIT_SAVED
    with suppress(OSError):
        sys.stdout.flush()
    return contract.EXIT_DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
