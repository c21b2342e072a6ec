"""`python3 -m stoker.data.remote.bring URL FOLDER …`: from an object store or the web to a folder, in place.

It is run where the folder is, in a pod, so that fifty gigabytes need not pass through a laptop. It prints a line of
JSON for each step of its progress; run again after a kill, it goes on where it was.
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

from stoker.data.archives import TARS, ZIPS, extract, is_archive, unwritable
from stoker.data.remote import place_of
from stoker.data.remote.transfer import Broken, RemoteError, copy
from stoker.rundir import write_json
from stoker.spec import contract
from stoker.spec.errors import StokerError, UserError
from stoker.storage.store import Store, Unreachable, open_store

WORK = ".stoker-bring"  # what is on its way, and what has come
OFTEN = 0.5  # seconds between two lines
MARGIN = 16 << 20  # bytes that are left free


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    url: str
    name: str
    size: int
    tag: str
    md5: str | None = None
    store: Store | None = None
    """None: what `place_of` finds reads it."""

    def read(self, start: int) -> Iterator[bytes]:
        if self.store is None:
            yield from place_of(self.url).read(self.url, start, self.tag)
            return
        try:
            yield from self.store.read(self.name, start, self.tag)
        except Unreachable as e:
            raise Broken(e.problem) from e


def bring(
    url: str, folder: Path, *, unpack: bool, anonymous: bool = False, region: str | None = None
) -> Iterator[dict[str, object]]:
    """Tells of each step: phase, done, total, file."""
    sources = find(url, anonymous=anonymous, region=region)
    if unpack and (wrong := next((one.name for one in sources if not is_archive(one.name)), None)):
        raise UserError(
            f"{wrong} is no archive", remedy=f"Leave --extract out; archives end in {' '.join(TARS + ZIPS)}"
        )
    try:
        work = folder / WORK
        work.mkdir(parents=True, exist_ok=True)
        with open(work / "lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # of two that bring the same the second finds it there
            for source in sources:
                yield from _one(source, folder, work, unpack=unpack)
    except OSError as e:
        raise unwritable(folder, e) from e


def find(url: str, *, anonymous: bool = False, region: str | None = None) -> list[Source]:
    """The object of that name, or all below it."""
    if not url.startswith(("s3://", "gs://")):
        return [Source(url=one, name=name, size=size, tag=tag) for one, name, size, tag in place_of(url).find(url)]
    above, _, name = url.rstrip("/").rpartition("/")
    if not above.endswith("/"):  # of a whole bucket it is the scheme
        store = open_store(above, anonymous=anonymous, region=region)
        if there := store.look(name):
            return [Source(url=url, name=name, size=there.size, tag=there.tag, md5=there.md5, store=store)]
    inside = open_store(url, anonymous=anonymous, region=region)
    found = {key: one for key, one in inside.list().objects.items() if not key.endswith("/")}
    if not found:
        raise RemoteError(f"there is no {url}", remedy="Check the bucket and the key")
    return [
        Source(url=f"{inside.url}/{key}", name=key, size=one.size, tag=one.tag, store=inside)
        for key, one in found.items()
    ]


def _one(source: Source, folder: Path, work: Path, *, unpack: bool) -> Iterator[dict[str, object]]:
    mark = hashlib.sha256(f"{source.url}\n{source.tag}\n{source.size}".encode()).hexdigest()[:32]
    done, archive = work / f"{mark}.json", work / f"{mark}.part"
    target = folder / _safe(source.name)
    if done.is_file() and (unpack or (target.is_file() and target.stat().st_size == source.size)):
        yield {"phase": "there", "file": source.name, "done": source.size, "total": source.size}
        return
    there = archive.stat().st_size if archive.is_file() else 0
    _check_room(source, there, folder, unpack=unpack)
    got = there if there <= source.size else 0
    for bytes in copy(source.read, archive, size=source.size, name=source.url):
        got += bytes
        yield {"phase": "fetching", "file": source.name, "done": got, "total": source.size}
    if source.md5 and _md5(archive) != source.md5:
        archive.unlink()
        raise UserError(f"{source.url} came out damaged", remedy="Run the same command again")
    if unpack:
        files = unpacked = 0
        for size in extract(archive, folder, name=source.name):
            files, unpacked = files + 1, unpacked + size
            yield {"phase": "unpacking", "file": source.name, "done": unpacked, "total": 0, "files": files}
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        archive.replace(target)
    write_json(done, {"url": source.url, "tag": source.tag, "bytes": source.size})
    archive.unlink(missing_ok=True)
    yield {"phase": "done", "file": source.name, "done": source.size, "total": source.size}


def _safe(name: str) -> str:
    if name.startswith("/") or {"", ".", ".."} & set(name.split("/")) or "\0" in name:
        raise UserError(f"{name!r} is no name for a file", remedy="Fetch the others by name")
    return name


def _check_room(source: Source, there: int, folder: Path, *, unpack: bool) -> None:
    """An archive is unpacked beside itself; what a packed one comes to is seen as it is unpacked."""
    needed = source.size - min(there, source.size) + (source.size if unpack else 0)
    free = shutil.disk_usage(folder).free
    if needed + MARGIN > free:
        raise UserError(
            f"{source.url} needs {needed / 2**30:.2f} GiB in {folder}, and {free / 2**30:.2f} GiB are free there",
            remedy="Make room, or take a larger volume",
        )


def _md5(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="stoker.data.remote.bring")
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--extract", action="store_true")
    parser.add_argument("--anonymous", action="store_true")
    parser.add_argument("--region")
    args = parser.parse_args(argv)
    said, phase = 0.0, ""
    try:
        for step in bring(args.url, args.folder, unpack=args.extract, anonymous=args.anonymous, region=args.region):
            if step["phase"] != phase or step["phase"] in ("there", "done") or time.monotonic() - said > OFTEN:
                said, phase = time.monotonic(), str(step["phase"])
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
