"""Things built once: each lies in the cache under a key made from all that it was made from."""

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from lab.places import CACHE
from lab.progress import say


def key(*parts: str | bytes | Path) -> str:
    """A hash over texts and files, and over what lies in folders."""
    found = hashlib.sha256()
    for part in parts:
        for content in _contents(part):
            found.update(len(content).to_bytes(8, "big") + content)
    return found.hexdigest()[:16]


def built(name: str, made_from: str, build: Callable[[Path], None], *, takes: str = "") -> Path:
    """The folder that `build` fills, from the cache or made now. It is there whole or not at all."""
    folder = CACHE / f"{name}-{made_from}"
    if folder.exists():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder
        for left in CACHE.glob(f"{name}-*.half"):  # by a build that was killed
            shutil.rmtree(left, ignore_errors=True)
        began = time.monotonic()
        say(f"building {name}{takes and f', once: {takes}'}")
        half = Path(tempfile.mkdtemp(prefix=f"{name}-", suffix=".half", dir=CACHE))
        try:
            build(half)
            half.chmod(0o755)
            os.replace(half, folder)
        finally:
            shutil.rmtree(half, ignore_errors=True)
        say(f"built {name} in {time.monotonic() - began:.0f} s")
    return folder


def _contents(part: str | bytes | Path) -> Iterable[bytes]:
    if isinstance(part, str):
        yield part.encode()
    elif isinstance(part, bytes):
        yield part
    elif part.is_dir():
        for file in sorted(path for path in part.rglob("*") if path.is_file()):
            yield str(file.relative_to(part)).encode()
            yield file.read_bytes()
    else:
        yield part.read_bytes()
