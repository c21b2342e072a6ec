"""A build cache: each build is stored under a hash of its inputs."""

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from lab.places import CACHE
from lab.progress import log


def key(*parts: str | bytes | Path) -> str:
    """A hash of texts, files and the contents of folders."""
    digest = hashlib.sha256()
    for part in parts:
        for content in _contents(part):
            digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()[:16]


def built(name: str, inputs: str, build: Callable[[Path], None], *, takes: str = "") -> Path:
    """Return the folder that `build` fills, from the cache or built now. It is complete, or it does not exist."""
    folder = CACHE / f"{name}-{inputs}"
    if folder.exists():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder
        for unfinished in CACHE.glob(f"{name}-*.tmp"):  # from a build that was killed
            shutil.rmtree(unfinished, ignore_errors=True)
        start = time.monotonic()
        log(f"building {name}{takes and f', only once: {takes}'}")
        temporary = Path(tempfile.mkdtemp(prefix=f"{name}-", suffix=".tmp", dir=CACHE))
        try:
            build(temporary)
            temporary.chmod(0o755)
            os.replace(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        log(f"built {name} in {time.monotonic() - start:.0f} s")
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
