"""Downloads from the store to a working copy."""

import hashlib
import os
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from stoker.rundir import Saved, write_atomic
from stoker.rundir.checkpoint import CheckpointFile, CheckpointManifest, file_damage, parse_manifest
from stoker.spec import contract
from stoker.spec.bounded import MAX_BYTES
from stoker.storage import layout
from stoker.storage.layout import ALWAYS, RemoteRun
from stoker.storage.lock import Last, last
from stoker.storage.store import Object
from stoker.storage.working_copy import CopyState, WorkingCopy

CONCURRENT_DOWNLOADS = 8
LOG_PIECES = 16  # downloaded from the end of a log


@dataclass(frozen=True, kw_only=True, slots=True)
class RefreshedRun:
    """A run in the store as it was when the copy was refreshed."""

    remote: RemoteRun
    last: Last
    set_aside: Path | None = None
    """Where the local files were moved when the store's history replaced them."""


def refresh(copy: WorkingCopy, parts: Iterable[str] = ()) -> RefreshedRun:
    """Downloads what every reader needs, and `parts`: paths below the run's folder."""
    if not copy.run.path.exists() and not copy.home.exists():  # a mistyped name leaves nothing behind
        remote = layout.look(copy.store, copy.name)
        if not remote.exists:
            return RefreshedRun(remote=remote, last=last(copy.store, copy.name, remote))
    with copy.locked() as state:
        remote = layout.look(copy.store, copy.name)
        newest = last(copy.store, copy.name, remote)
        if copy.run.holder() is not None:  # it is written on this machine, so this copy is newer
            return RefreshedRun(remote=remote, last=newest)
        set_aside = _resolve_conflict(copy, state, remote, newest)
        if not state.dirty:
            if remote.exists:
                _download(copy, state, remote, (*ALWAYS, *parts))
            elif copy.run.exists():  # it was deleted in the store
                shutil.rmtree(copy.run.path)
            state.seen = [newest.token]
        _manifests(copy, remote)
        return RefreshedRun(remote=remote, last=newest, set_aside=set_aside)


def download_checkpoint(copy: WorkingCopy, remote: RemoteRun, step: int) -> bool:
    """Downloads a checkpoint; True if all files match its manifest."""
    folder, files = copy.run.checkpoint(step), remote.checkpoints.get(step, {})
    if contract.MANIFEST_FILE not in files:
        return False
    manifest = manifest_text(copy, step, files[contract.MANIFEST_FILE])
    if manifest is None:
        return False
    file = folder / contract.MANIFEST_FILE
    file.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    parsed = _parsed(manifest)
    listed = parsed.files if parsed else {}
    names = [name for name in listed if name in files]
    with ThreadPoolExecutor(CONCURRENT_DOWNLOADS) as pool:
        good = list(pool.map(lambda name: _download_listed(copy, step, folder / name, listed[name]), names))
    write_atomic(file, manifest)
    return parsed is not None and all(good) and len(names) == len(listed)


def manifests(copy: WorkingCopy, remote: RemoteRun) -> dict[int, CheckpointManifest]:
    """The manifests of the complete checkpoints in the store, by step."""
    texts = {
        step: manifest_text(copy, step, remote.checkpoints[step][contract.MANIFEST_FILE]) for step in remote.complete
    }
    parsed = {step: _parsed(text) for step, text in texts.items() if text is not None}
    return {step: manifest for step, manifest in parsed.items() if manifest is not None}


def _resolve_conflict(copy: WorkingCopy, state: CopyState, remote: RemoteRun, newest: Last) -> Path | None:
    """If both sides have advanced, the store wins: the local files are set aside. Histories are never mixed."""
    lost = remote.exists and not copy.run.exists()  # the copy was deleted
    if not state.dirty or (newest.token in state.seen and not lost):
        return None
    set_aside = copy.set_aside() if copy.run.exists() else None
    vars(state).update(vars(CopyState()))
    return set_aside


def _download(copy: WorkingCopy, state: CopyState, remote: RemoteRun, parts: Sequence[str]) -> None:
    copy.run.path.mkdir(parents=True, exist_ok=True)
    for folder in (contract.LEDGER_DIR, contract.LOGS_DIR, contract.CHECKPOINTS_DIR):
        (copy.run.path / folder).mkdir(exist_ok=True)
    with ThreadPoolExecutor(CONCURRENT_DOWNLOADS) as pool:
        grown = [path for path in remote.pieces if _is_in(path, parts)]
        list(pool.map(lambda path: _download_growing(copy, state, path, remote.pieces[path]), grown))
        files = [path for path in remote.files if _is_in(path, parts) and path != contract.SPEC_FILE]
        list(pool.map(lambda path: _download_file(copy, state, path, remote.files[path]), files))
    for path in set(state.files) - set(remote.files):
        (copy.run.path / path).unlink(missing_ok=True)
        del state.files[path]
    _forget_checkpoints(copy, remote)
    _download_file(copy, state, contract.SPEC_FILE, remote.files[contract.SPEC_FILE])  # last: it makes the run exist


def _is_in(path: str, parts: Sequence[str]) -> bool:
    return any(part in ("", path) or path.startswith(f"{part}/") for part in parts)


def _download_growing(copy: WorkingCopy, state: CopyState, path: str, pieces: dict[int, Object]) -> None:
    """Downloads what was appended: pieces only grow, so the local file is a prefix of the remote file."""
    file = copy.run.path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    starts = sorted(pieces)
    if not file.exists():
        if path.startswith(f"{contract.LOGS_DIR}/"):
            starts = starts[-LOG_PIECES:]
        state.bases[path] = starts[0]
    position = state.bases.get(path, 0) + (file.stat().st_size if file.exists() else 0)
    with open(file, "ab") as grown:
        for start in starts:
            if start + pieces[start].size > position:
                data = copy.store.get(copy.key(layout.piece(path, start))) or b""
                position += grown.write(data[position - start :])
    state.inodes[path] = file.stat().st_ino


def _download_file(copy: WorkingCopy, state: CopyState, path: str, object: Object) -> None:
    file = copy.run.path / path
    known = state.files.get(path)
    if known and known[0] == object.tag and file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    copy.store.download(copy.key(path), file)
    os.utime(file, (object.modified.timestamp(),) * 2)
    stat = file.stat()
    state.files[path] = (object.tag, stat.st_size, stat.st_mtime_ns)


def _download_listed(copy: WorkingCopy, step: int, file: Path, listed: CheckpointFile) -> bool:
    """Downloads a checkpoint's file, unless the local file matches the manifest."""
    if file_damage(file, listed):
        copy.store.download(copy.key(f"{layout.checkpoint(step)}/{file.name}"), file)
    return file_damage(file, listed) is None


def is_whole(saved: Saved) -> bool:
    return all(file_damage(saved.path / name, file) is None for name, file in saved.manifest.files.items())


def _forget_checkpoints(copy: WorkingCopy, remote: RemoteRun) -> None:
    """Deletes local checkpoints that are missing or different in the store."""
    for saved in copy.run.saved():
        local = saved.path / contract.MANIFEST_FILE
        object = remote.checkpoints.get(saved.step, {}).get(contract.MANIFEST_FILE)
        if object is None or manifest_text(copy, saved.step, object) != local.read_text():
            local.unlink()
            shutil.rmtree(saved.path, ignore_errors=True)


def _manifests(copy: WorkingCopy, remote: RemoteRun) -> None:
    """Downloads manifests without the files, so that readers know which checkpoints exist."""
    kept = {_manifest_file(copy, step, remote.checkpoints[step][contract.MANIFEST_FILE]) for step in remote.complete}
    for file in (copy.home / "manifests").glob("*"):
        if file not in kept:
            file.unlink()
    manifests(copy, remote)


def manifest_text(copy: WorkingCopy, step: int, object: Object) -> str | None:
    """The text of a manifest in the store, cached by its tag; None if it has just been deleted."""
    file = _manifest_file(copy, step, object)
    if object.size > MAX_BYTES:
        return ""  # no manifest is that long
    if not file.exists():
        data = copy.store.get(copy.key(f"{layout.checkpoint(step)}/{contract.MANIFEST_FILE}"))
        if data is None:
            return None
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, data.decode(errors="replace"))
    return file.read_text()


def _parsed(manifest: str) -> CheckpointManifest | None:
    try:
        return parse_manifest(manifest)
    except ValueError:
        return None


def _manifest_file(copy: WorkingCopy, step: int, object: Object) -> Path:
    return copy.home / "manifests" / f"{step}-{hashlib.sha256(object.tag.encode()).hexdigest()[:16]}.json"
