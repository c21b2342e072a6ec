"""Hard links to the files of a checkpoint, which remain when the run of the checkpoint deletes it."""

import os
import shutil
from pathlib import Path

from stoker.rundir import Saved
from stoker.rundir.checkpoint import file_damage
from stoker.spec import contract


def link_checkpoint(saved: Saved, folder: Path) -> bool:
    """Link or copy a checkpoint into a new folder. False, and no folder, if it is incomplete, deleted or damaged."""
    folder.mkdir(parents=True)
    if _link_files(saved, folder):
        return True
    shutil.rmtree(folder)
    return False


def _link_files(saved: Saved, folder: Path) -> bool:
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
    """A hard link is enough: the trainer never writes into an existing checkpoint."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or another user's file
        shutil.copyfile(source, target)
