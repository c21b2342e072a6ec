"""Runs under a URL: each has a working copy here, an ordinary run directory that everybody reads and writes as ever.

Only what opens runs knows the difference: a place may be a folder or a URL, and a folder with remote.json in it is the
place of the working copies of a URL.
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
from stoker.spec import contract
from stoker.spec.bounded import read_json
from stoker.spec.errors import UserError
from stoker.storage.copy import Copy, State
from stoker.storage.fetch import Seen, bring_checkpoint, is_whole, manifests, refresh
from stoker.storage.layout import Remote
from stoker.storage.lock import Last, refuse_second
from stoker.storage.store import Store, StoreError, address, cache, is_url, open_store, split

REMOTE_FILE = "remote.json"
FRESH = 3.0  # seconds that a look at the store holds good
AT_ONCE = 16
NOTHING = Seen(remote=Remote(now=datetime.fromtimestamp(0, UTC)), last=Last(writer=None, seconds=0.0))
MARK = ".stoker"
MARK_TEXT = b"Stoker keeps runs here.\n"


def place(word: str | Path) -> Path:
    """Where runs are kept: the folder itself, or that of the working copies of a URL's runs."""
    if not str(word):
        raise UserError("the folder of the runs has an empty name", remedy="Name it, such as --runs ./runs")
    if isinstance(word, Path) or not is_url(word):
        return Path(word).expanduser()
    scheme, bucket, prefix = split(word)
    url = f"{scheme}://{bucket}/{prefix}".rstrip("/")
    folder = _copies() / address(url)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (folder / REMOTE_FILE).exists():
        write_json(folder / REMOTE_FILE, {"url": url})
    return folder


def _copies() -> Path:
    return cache() / "runs"


def run_path(word: str) -> Path:
    """The folder of a run that is named by its own: …/NAME."""
    if not is_url(word):
        return Path(word)
    above, _, name = word.rstrip("/").rpartition("/")
    return place(above) / name


def remote_of(folder: Path) -> str | None:
    """The URL whose runs have their working copies in this folder.

    Such folders lie in the user's own cache. A file of that name elsewhere came with a download: what it names could
    be anybody's bucket, and exports would be sent there.
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


def in_words(folder: Path) -> str:
    return remote_of(folder) or str(folder.absolute())


def run_dir(path: Path) -> RunDir:
    """The run of that folder, to read; in a store, as it stands there now."""
    url = remote_of(path.parent)
    return RunDir(path) if url is None else MirroredRun(path, open_store(url))


def runs_in(folder: Path) -> list[RunDir]:
    """All runs that are kept in a place, to read."""
    url = remote_of(folder)
    if url is None:
        # also where it is a link that leads nowhere: such a run is listed, and what is wrong with it
        return [RunDir(path) for path in _inside(folder) if os.path.lexists(path / contract.SPEC_FILE)]
    store = open_store(url)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        names = store.folders()
        # a bucket may hold other folders, and large ones
        there = pool.map(lambda name: bool(store.list(f"{name}/{contract.SPEC_FILE}").objects), names)
        found = [MirroredRun(folder / name, store) for name, is_run in zip(names, there, strict=True) if is_run]
        exist = pool.map(MirroredRun.exists, found)
        return [run for run, is_there in zip(found, exist, strict=True) if is_there]


def _inside(folder: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(folder)]
    except (FileNotFoundError, NotADirectoryError):
        return []


class MirroredRun(RunDir):
    """A run in a store, to read: it looks there before it answers, unless the run is being written here."""

    def __init__(self, path: Path, store: Store) -> None:
        super().__init__(path)
        self._copy = Copy(RunDir(path), store)
        self._parts: set[str] = set()
        self._seen: Seen | None = None
        self._looked = float("-inf")

    @property
    def place(self) -> str:
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

    def events(self) -> list[Record]:
        self._look()
        return super().events()

    def metrics(self) -> list[Record]:
        self._look()
        return super().metrics()

    def exit(self) -> Exit | None:
        self._look()
        return super().exit()

    def holder(self) -> Record | None:
        here = super().holder()
        if here is not None:
            return here
        last = self._look().last
        return last.writer.holder() if last.alive and last.writer else None

    def saved(self) -> list[Saved]:
        """Those in the store too; their files are here when `fetch` was asked for them."""
        there = manifests(self._copy, self._look().remote)
        elsewhere = {s: Saved(step=s, path=self.checkpoint(s), manifest=manifest) for s, manifest in there.items()}
        here = {saved.step: saved for saved in super().saved()}
        return [saved for _, saved in sorted((elsewhere | here).items())]

    def fetch(self, saved: Saved) -> None:
        """Who reads it looks for damage anyhow."""
        if saved.step not in (here.step for here in super().saved()):
            remote = self._look().remote
            with self._copy.alone():
                bring_checkpoint(self._copy, remote, saved.step)

    def _part(self, name: str) -> None:
        """What only some readers want."""
        if name not in self._parts:
            self._parts.add(name)
            self._looked = float("-inf")
            self._look()

    def _look(self) -> Seen:
        if super().holder() is not None:  # it is written here, and nothing in the store is newer
            return NOTHING
        if self._seen is None or time.monotonic() - self._looked > FRESH:
            try:
                self._seen = refresh(self._copy, self._parts)
            except StoreError:
                if self._seen is None:
                    raise
            self._looked = time.monotonic()
        return self._seen


def pull(run: RunDir, *, resume: int | Literal["auto"] | None) -> None:
    """Before a run is begun or gone on with here: all that it needs, as the store has it.

    `resume` is the spec's checkpoint.resume, and None for a script, whose files are all brought. For a run that is kept
    in a folder there is nothing to do.
    """
    url = remote_of(run.path.parent)
    if url is None or run.holder() is not None:
        return
    store = open_store(url)
    store.put(MARK, MARK_TEXT)  # before hours of work: may we write there?
    copy = Copy(run, store)
    found = refresh(copy, [""] if resume is None else [contract.LEDGER_DIR, contract.LOGS_DIR])
    refuse_second(run.name, found.last)
    with copy.alone() as state:
        if resume is not None:
            _pull_checkpoints(copy, state, found, resume)
        state.dirty = True
    if found.left:
        run.add_event("note", text=f"somebody else went on with this run in {url}; what was here is in {found.left}")


@contextmanager
def outgoing(word: str | None) -> Iterator[Path | None]:
    """The folder that a word names, to be made. For a URL it is one for a while, and what is in it then goes up."""
    if word is None or not is_url(word):
        yield Path(word) if word else None
        return
    store = open_store(word)
    if store.list().objects:
        raise UserError(f"{word} is not empty", remedy="Choose another place, or remove what is there")
    store.put(MARK, MARK_TEXT)  # before hours of work: may we write there?
    store.delete([MARK])
    with TemporaryDirectory(prefix="out-", dir=cache()) as folder:
        path = Path(folder, word.rstrip("/").rpartition("/")[2])
        yield path
        upload_folder(path, word)


def keep(folder: Path) -> str:
    """Where a folder is kept that was just written, in words: one in a run's working copy goes to the store."""
    for above in folder.parents:
        if url := remote_of(above):
            home = f"{url}/{folder.relative_to(above).as_posix()}"
            upload_folder(folder, home)
            return home
    return str(folder)


def upload_folder(folder: Path, url: str) -> None:
    """What is there already is not sent again."""
    store = open_store(url)
    there = store.list().objects
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        key = file.relative_to(folder).as_posix()
        if key not in there or there[key].tag != store.tag(file):
            store.upload(key, file)


def _pull_checkpoints(copy: Copy, state: State, found: Seen, resume: int | Literal["auto"]) -> None:
    """The newest that is undamaged. A run that is sent back to an earlier one needs all from there on, to set aside."""
    known = manifests(copy, found.remote)
    newest = max(known, default=None)
    here = copy.run.saved()
    if newest is None or (state.dirty and (len(here) > 1 or (here and is_whole(here[0])))):
        return
    if resume != "auto" and known[newest].state.resume != resume:
        for step in (step for step in known if step >= resume):
            bring_checkpoint(copy, found.remote, step)
    else:
        any(bring_checkpoint(copy, found.remote, step) for step in sorted(known, reverse=True))
