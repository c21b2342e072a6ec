"""A checkpoint under a second name: its run may go on, prune it, or be deleted."""

import os
import shutil
from pathlib import Path

from stoker.rundir import Saved
from stoker.rundir.checkpoint import file_damage
from stoker.spec import contract


def borrow(saved: Saved, folder: Path) -> bool:
    """False, and nothing is left, when it is not whole, no longer there, or not as it was written."""
    folder.mkdir(parents=True)
    if _take(saved, folder):
        return True
    shutil.rmtree(folder)
    return False


def _take(saved: Saved, folder: Path) -> bool:
    try:
        for name, file in saved.manifest.files.items():
            if (saved.path / name).is_symlink():
                return False
            _link(saved.path / name, folder / name)
            if file_damage(folder / name, file):
                return False
        _link(saved.path / contract.MANIFEST_FILE, folder / contract.MANIFEST_FILE)
    except FileNotFoundError:
        return False
    return True


def _link(source: Path, target: Path) -> None:
    """The trainer never writes into a checkpoint that is there, so a second name for the file is copy enough."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or another user's file
        shutil.copyfile(source, target)
