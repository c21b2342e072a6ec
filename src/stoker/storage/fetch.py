"""From the store to the copy here."""

import hashlib
import os
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from stoker.rundir import Saved, write_atomic
from stoker.rundir.checkpoint import File, Manifest, file_damage, parse_manifest
from stoker.spec import contract
from stoker.spec.bounded import MAX_BYTES
from stoker.storage import layout
from stoker.storage.copy import Copy, State
from stoker.storage.layout import ALWAYS, Remote
from stoker.storage.lock import Last, last
from stoker.storage.store import Object

AT_ONCE = 8
LOG_PIECES = 16  # the end of a log is what is asked for


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """A run in the store as it was found when the copy was brought up to date."""

    remote: Remote
    last: Last
    left: Path | None = None
    """Where a copy went that somebody else's history has replaced."""


def refresh(copy: Copy, parts: Iterable[str] = ()) -> Seen:
    """Bring what every reader wants, and the parts asked for: paths below the run's folder."""
    if not copy.run.path.exists() and not copy.home.exists():  # a name that was mistyped leaves nothing here
        remote = layout.look(copy.store, copy.name)
        if not remote.exists:
            return Seen(remote=remote, last=last(copy.store, copy.name, remote))
    with copy.alone() as state:
        remote = layout.look(copy.store, copy.name)
        found = last(copy.store, copy.name, remote)
        if copy.run.holder() is not None:  # it is written here, and this copy is ahead
            return Seen(remote=remote, last=found)
        left = _yield_to(copy, state, remote, found)
        if not state.dirty:
            if remote.exists:
                _bring(copy, state, remote, (*ALWAYS, *parts))
            elif copy.run.path.exists():  # it was deleted in the store
                shutil.rmtree(copy.run.path)
            state.seen = [found.token]
        _manifests(copy, remote)
        return Seen(remote=remote, last=found, left=left)


def bring_checkpoint(copy: Copy, remote: Remote, step: int) -> bool:
    """True when it came as it was saved: what its manifest says of its files is true."""
    folder, files = copy.run.checkpoint(step), remote.checkpoints.get(step, {})
    if contract.MANIFEST_FILE not in files:
        return False
    manifest = manifest_text(copy, step, files[contract.MANIFEST_FILE])
    if manifest is None:
        return False
    here = folder / contract.MANIFEST_FILE
    here.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    parsed = _parsed(manifest)
    listed = parsed.files if parsed else {}
    names = [name for name in listed if name in files]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        good = list(pool.map(lambda name: _bring_listed(copy, step, folder / name, listed[name]), names))
    write_atomic(here, manifest)
    return parsed is not None and all(good) and len(names) == len(listed)


def manifests(copy: Copy, remote: Remote) -> dict[int, Manifest]:
    """Of the checkpoints that are whole in the store."""
    texts = {step: manifest_text(copy, step, remote.checkpoints[step][contract.MANIFEST_FILE]) for step in remote.whole}
    found = {step: _parsed(text) for step, text in texts.items() if text is not None}
    return {step: manifest for step, manifest in found.items() if manifest is not None}


def _yield_to(copy: Copy, state: State, remote: Remote, found: Last) -> Path | None:
    """Two histories are never mixed: where both have gone on, the store's counts."""
    lost = remote.exists and not copy.run.exists()  # somebody has deleted the copy
    if not state.dirty or (found.token in state.seen and not lost):
        return None
    left = copy.set_aside() if copy.run.exists() else None
    vars(state).update(vars(State()))
    return left


def _bring(copy: Copy, state: State, remote: Remote, parts: Sequence[str]) -> None:
    copy.run.path.mkdir(parents=True, exist_ok=True)
    for folder in (contract.LEDGER_DIR, contract.LOGS_DIR, contract.CHECKPOINTS_DIR):
        (copy.run.path / folder).mkdir(exist_ok=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        grown = [path for path in remote.pieces if _is_in(path, parts)]
        list(pool.map(lambda path: _bring_growing(copy, state, path, remote.pieces[path]), grown))
        files = [path for path in remote.files if _is_in(path, parts) and path != contract.SPEC_FILE]
        list(pool.map(lambda path: _bring_file(copy, state, path, remote.files[path]), files))
    for path in set(state.files) - set(remote.files):
        (copy.run.path / path).unlink(missing_ok=True)
        del state.files[path]
    _forget_checkpoints(copy, remote)
    _bring_file(copy, state, contract.SPEC_FILE, remote.files[contract.SPEC_FILE])  # last: it makes the run exist


def _is_in(path: str, parts: Sequence[str]) -> bool:
    return any(part in ("", path) or path.startswith(f"{part}/") for part in parts)


def _bring_growing(copy: Copy, state: State, path: str, pieces: dict[int, Object]) -> None:
    """What has been added. Pieces only ever grow, so what is here is the beginning of what is there."""
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


def _bring_file(copy: Copy, state: State, path: str, there: Object) -> None:
    file = copy.run.path / path
    known = state.files.get(path)
    if known and known[0] == there.tag and file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    copy.store.download(copy.key(path), file)
    os.utime(file, (there.modified.timestamp(),) * 2)
    stat = file.stat()
    state.files[path] = (there.tag, stat.st_size, stat.st_mtime_ns)


def _bring_listed(copy: Copy, step: int, file: Path, listed: File) -> bool:
    """A checkpoint's file, unless it is here as its manifest says."""
    if file_damage(file, listed):
        copy.store.download(copy.key(f"{layout.checkpoint(step)}/{file.name}"), file)
    return file_damage(file, listed) is None


def is_whole(saved: Saved) -> bool:
    return all(file_damage(saved.path / name, file) is None for name, file in saved.manifest.files.items())


def _forget_checkpoints(copy: Copy, remote: Remote) -> None:
    """Those here that the store does not have, or has otherwise."""
    for saved in copy.run.saved():
        here = saved.path / contract.MANIFEST_FILE
        there = remote.checkpoints.get(saved.step, {}).get(contract.MANIFEST_FILE)
        if there is None or manifest_text(copy, saved.step, there) != here.read_text():
            here.unlink()
            shutil.rmtree(saved.path, ignore_errors=True)


def _manifests(copy: Copy, remote: Remote) -> None:
    """So that a reader knows what is saved, without the files."""
    kept = {_manifest_file(copy, step, remote.checkpoints[step][contract.MANIFEST_FILE]) for step in remote.whole}
    for file in (copy.home / "manifests").glob("*"):
        if file not in kept:
            file.unlink()
    manifests(copy, remote)


def manifest_text(copy: Copy, step: int, there: Object) -> str | None:
    """None when it was deleted just now."""
    file = _manifest_file(copy, step, there)
    if there.size > MAX_BYTES:
        return ""  # no manifest is so long
    if not file.exists():
        data = copy.store.get(copy.key(f"{layout.checkpoint(step)}/{contract.MANIFEST_FILE}"))
        if data is None:
            return None
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, data.decode(errors="replace"))
    return file.read_text()


def _parsed(manifest: str) -> Manifest | None:
    try:
        return parse_manifest(manifest)
    except ValueError:
        return None


def _manifest_file(copy: Copy, step: int, there: Object) -> Path:
    return copy.home / "manifests" / f"{step}-{hashlib.sha256(there.tag.encode()).hexdigest()[:16]}.json"
