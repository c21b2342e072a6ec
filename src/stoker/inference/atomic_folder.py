"""Writes a folder so that it appears complete or not at all."""

import errno
import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stoker.spec.errors import UserError

SUFFIX = ".partial"


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A folder to write into, beside `path`: renamed to it on success, removed on failure."""
    require_free(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path)
        partial = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=SUFFIX, dir=path.parent))
    except OSError as e:
        raise UserError(f"cannot write in {path.parent}: {e.strerror}", remedy="Choose another place") from e
    lock = os.open(partial, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield partial
        partial.chmod(0o777 & ~_umask())  # mkdtemp makes it private
        for file in partial.rglob("*"):
            if file.is_file():
                _sync(file)
        _rename(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        os.close(lock)


def require_free(path: Path) -> None:
    if path.is_dir() and any(path.iterdir()):
        raise UserError(f"{path} is not empty", remedy="Choose another folder, or remove that one")
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file", remedy="Choose another folder")


def _sweep(path: Path) -> None:
    """Remove folders left by killed writers of `path`: the kernel has released their locks."""
    for partial in path.parent.glob(f".{glob.escape(path.name)}.*{SUFFIX}"):
        with suppress(OSError):
            lock = os.open(partial, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(partial, ignore_errors=True)
            finally:
                os.close(lock)


def _rename(partial: Path, path: Path) -> None:
    try:
        os.rename(partial, path)
    except OSError as e:
        if e.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        require_free(path)
        raise


def _sync(file: Path) -> None:
    """Its bytes reach the disk before its name does: after a power cut, a folder that looks complete is."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
