"""Runs under a URL: each has a working copy on this machine, an ordinary run directory.

Only the code that opens runs knows the difference: runs are kept in a folder or under a URL, and a folder with
remote.json in it holds the working copies of a URL.
"""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from stoker.rundir import Exit, Record, RunDir, Saved, write_json
from stoker.rundir.events import Event, Note
from stoker.spec import contract
from stoker.spec.bounded import read_json
from stoker.spec.errors import UserError
from stoker.storage.download import RefreshedRun, download_checkpoint, is_whole, manifests, refresh
from stoker.storage.layout import RemoteRun, is_run_name
from stoker.storage.lock import Last, refuse_second
from stoker.storage.store import Store, StoreError, address, cache, is_url, open_store, split
from stoker.storage.working_copy import CopyState, WorkingCopy

REMOTE_FILE = "remote.json"
FRESH_FOR_S = 3.0  # how long a listing of the store is reused
CONCURRENT_REFRESHES = 16
NOTHING = RefreshedRun(remote=RemoteRun(now=datetime.fromtimestamp(0, UTC)), last=Last(writer=None, seconds=0.0))
MARK = ".stoker"
MARK_TEXT = b"Stoker keeps runs here.\n"


def place(location: str | Path) -> Path:
    """The folder of the runs; for a URL, the folder of their working copies."""
    if not str(location):
        raise UserError("the folder of the runs has an empty name", remedy="Name it, such as --runs ./runs")
    if isinstance(location, Path) or not is_url(location):
        return Path(os.path.expanduser(location))
    scheme, bucket, prefix = split(location)
    url = f"{scheme}://{bucket}/{prefix}".rstrip("/")
    folder = _copies() / address(url)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (folder / REMOTE_FILE).exists():
        write_json(folder / REMOTE_FILE, {"url": url})
    return folder


def _copies() -> Path:
    return cache() / "runs"


def run_path(location: str) -> Path:
    """The folder of a run that is named by a path or URL: …/NAME."""
    if not is_url(location):
        return Path(location)
    parent, _, name = location.rstrip("/").rpartition("/")
    return place(parent) / name


def remote_of(folder: Path) -> str | None:
    """The URL whose runs have their working copies in this folder.

    Only folders in the user's own cache count. Elsewhere such a file may have come with a download and name the bucket
    of a stranger, and exports would be uploaded to it.
    """
    if not (folder / REMOTE_FILE).is_file() or os.path.realpath(folder.parent) != os.path.realpath(_copies()):
        return None
    try:
        record = read_json(folder / REMOTE_FILE)
    except ValueError:
        record = None
    if not isinstance(record, dict) or not isinstance(record.get("url"), str):
        raise UserError(f"{folder / REMOTE_FILE} is damaged", remedy=f"Delete {folder}: it is a copy")
    return str(record["url"])


def shown_folder(folder: Path) -> str:
    return remote_of(folder) or str(folder.absolute())


def run_dir(path: Path) -> RunDir:
    """The run in a folder, for reading; refreshed if it is kept in a store."""
    url = remote_of(path.parent) if is_run_name(path.name) else None
    return RunDir(path) if url is None else MirroredRun(path, open_store(url))


def runs_in(folder: Path) -> list[RunDir]:
    """All runs in a folder or store, for reading."""
    url = remote_of(folder)
    if url is None:
        # a broken link counts too: such a run is listed with its problem
        return [RunDir(path) for path in _inside(folder) if os.path.lexists(path / contract.SPEC_FILE)]
    store = open_store(url)
    with ThreadPoolExecutor(CONCURRENT_REFRESHES) as pool:
        names = [name for name in store.folders() if is_run_name(name)]
        # a bucket may have other folders, and large ones
        have_spec = pool.map(lambda name: bool(store.list(f"{name}/{contract.SPEC_FILE}").objects), names)
        candidates = [
            MirroredRun(folder / name, store) for name, is_run in zip(names, have_spec, strict=True) if is_run
        ]
        exist = pool.map(MirroredRun.exists, candidates)
        return [run for run, exists in zip(candidates, exist, strict=True) if exists]


def _inside(folder: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(folder)]
    except (FileNotFoundError, NotADirectoryError):
        return []


class MirroredRun(RunDir):
    """A run in a store, for reading: refreshed from the store, unless this machine is writing it."""

    def __init__(self, path: Path, store: Store) -> None:
        super().__init__(path)
        self._copy = WorkingCopy(RunDir(path), store)
        self._parts: set[str] = set()
        self._seen: RefreshedRun | None = None
        self._looked = float("-inf")

    @property
    def shown(self) -> str:
        return f"{self._copy.store.url}/{self.name}"

    @property
    def ledger(self) -> Path:
        self._part(contract.LEDGER_DIR)
        return super().ledger

    @property
    def logs(self) -> Path:
        self._part(contract.LOGS_DIR)
        return super().logs

    def exists(self) -> bool:
        self._look()
        return super().exists()

    def events(self) -> list[Event]:
        self._look()
        return super().events()

    def metrics(self) -> list[Record]:
        self._look()
        return super().metrics()

    def exit(self) -> Exit | None:
        self._look()
        return super().exit()

    def holder(self) -> Record | None:
        holder = super().holder()
        if holder is not None:
            return holder
        last = self._look().last
        return last.writer.holder() if last.alive and last.writer else None

    def saved(self) -> list[Saved]:
        """Local checkpoints and those in the store; `fetch` downloads the files of the latter."""
        remote = manifests(self._copy, self._look().remote)
        stored = {s: Saved(step=s, path=self.checkpoint(s), manifest=manifest) for s, manifest in remote.items()}
        local = {saved.step: saved for saved in super().saved()}
        return [saved for _, saved in sorted((stored | local).items())]

    def fetch(self, saved: Saved) -> None:
        """Downloads a checkpoint that is only in the store; readers check it for damage."""
        if saved.step not in (local.step for local in super().saved()):
            remote = self._look().remote
            with self._copy.locked():
                download_checkpoint(self._copy, remote, saved.step)

    def _part(self, name: str) -> None:
        """Downloads a part of the run that only some readers need."""
        if name not in self._parts:
            self._parts.add(name)
            self._looked = float("-inf")
            self._look()

    def _look(self) -> RefreshedRun:
        if super().holder() is not None:  # this machine writes it, so the store has nothing newer
            return NOTHING
        if self._seen is None or time.monotonic() - self._looked > FRESH_FOR_S:
            try:
                self._seen = refresh(self._copy, self._parts)
            except StoreError:
                if self._seen is None:
                    raise
            self._looked = time.monotonic()
        return self._seen


def pull(run: RunDir, *, resume: int | Literal["auto"] | None) -> None:
    """Downloads what a run needs before it is started or resumed here.

    `resume` is the spec's checkpoint.resume, and None for a script, which needs all files. Does nothing for a run that
    is kept in a folder.
    """
    url = remote_of(run.path.parent)
    if url is None or run.holder() is not None:
        return
    store = open_store(url)
    store.put(MARK, MARK_TEXT)  # fail now, not after hours of work, if it cannot be written
    copy = WorkingCopy(run, store)
    refreshed = refresh(copy, [""] if resume is None else [contract.LEDGER_DIR, contract.LOGS_DIR])
    refuse_second(run.name, refreshed.last)
    with copy.locked() as state:
        if resume is not None:
            _pull_checkpoints(copy, state, refreshed, resume)
        state.dirty = True
    if refreshed.set_aside:
        text = f"this run was resumed elsewhere in {url}; the files of this machine are in {refreshed.set_aside}"
        run.add_event(Note(text=text))


@contextmanager
def outgoing(location: str | None) -> Iterator[Path | None]:
    """The folder to write to; for a URL, a temporary folder whose content is uploaded at the end."""
    if location is None or not is_url(location):
        yield Path(location) if location else None
        return
    store = open_store(location)
    if store.list().objects:
        raise UserError(f"{location} is not empty", remedy="Choose another folder or URL, or empty this one")
    store.put(MARK, MARK_TEXT)  # fail now, not after hours of work, if it cannot be written
    store.delete([MARK])
    with TemporaryDirectory(prefix="out-", dir=cache()) as folder:
        path = Path(folder, location.rstrip("/").rpartition("/")[2])
        yield path
        upload_folder(path, location)


def keep(folder: Path) -> str:
    """Uploads a folder that was written into a working copy; returns where it is kept."""
    for parent in folder.parents:
        if url := remote_of(parent):
            home = f"{url}/{folder.relative_to(parent).as_posix()}"
            upload_folder(folder, home)
            return home
    return str(folder)


def upload_folder(folder: Path, url: str) -> None:
    """Uploads the files that the store does not have yet."""
    store = open_store(url)
    existing = store.list().objects
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        key = file.relative_to(folder).as_posix()
        if key not in existing or existing[key].tag != store.tag(file):
            store.upload(key, file)


def _pull_checkpoints(
    copy: WorkingCopy, state: CopyState, refreshed: RefreshedRun, resume: int | Literal["auto"]
) -> None:
    """Downloads the newest undamaged checkpoint; to resume from a step, the checkpoints from that step on."""
    known = manifests(copy, refreshed.remote)
    newest = max(known, default=None)
    local = copy.run.saved()
    if newest is None or (state.dirty and (len(local) > 1 or (local and is_whole(local[0])))):
        return
    if resume != "auto" and known[newest].state.resume != resume:
        for step in (step for step in known if step >= resume):
            download_checkpoint(copy, refreshed.remote, step)
    else:
        any(download_checkpoint(copy, refreshed.remote, step) for step in sorted(known, reverse=True))
