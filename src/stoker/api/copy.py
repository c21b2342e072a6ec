"""Copies files between this machine and the volume of a run in a cluster, or from a bucket to the volume."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from stoker.backends import backend_of
from stoker.backends.kubernetes.volume.run_copy import copy_run, copy_target, copy_tokens, run_at
from stoker.backends.transfer import client
from stoker.backends.transfer.meter import TransferProgress
from stoker.backends.transfer.send import copied_item
from stoker.rundir import RunDir
from stoker.spec.errors import UserError

Show = Callable[[str], AbstractContextManager[Callable[[TransferProgress], None]]]
"""Opens a progress display with a title."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Copied:
    target: Path
    progress: TransferProgress | None
    """None for a token set that is here already."""
    run: RunDir | None = None
    """Set for the copy of a whole run directory."""


def show_nothing(_title: str) -> AbstractContextManager[Callable[[TransferProgress], None]]:
    return nullcontext(lambda _: None)


def upload(run: RunDir, sources: Sequence[Path], path: str, *, show: Show = show_nothing) -> TransferProgress:
    """Files and folders to a path on the run's volume. Raises UserError for one that does not exist."""
    for source in sources:
        if not source.exists():
            raise UserError(f"there is no {source}", remedy="Name files and folders on this machine")
    files = backend_of(run).files(run)
    into = files.path(path) + ("/" if len(sources) > 1 and not path.endswith("/") else "")
    items = [copied_item(source, into) for source in sources]
    with show("uploading") as progress:
        return client.upload(items, files, progress)


def download(
    run: RunDir, path: str, target: Path, *, tokens: bool = True, show: Show = show_nothing
) -> Iterator[Copied]:
    """A file or folder of the run's volume. A whole run directory comes with its token set, unless not `tokens`.

    A copy that was interrupted is continued.
    """
    files = backend_of(run).files(run)
    source = files.path(path)
    name = run_at(source)
    if name is None:
        with show("downloading") as progress:
            done = client.download(files, source, target, progress)
        yield Copied(target=target, progress=done)
        return
    copy = copy_target(target, name)
    with show("downloading") as progress:
        done = copy_run(files, name, copy, progress)
    yield Copied(target=copy.path, progress=done, run=copy)
    if tokens:
        with show("downloading its token set") as progress:
            for folder, fetched in copy_tokens(files, copy, progress):
                yield Copied(target=folder, progress=fetched)


def fetch(
    run: RunDir, urls: Sequence[str], path: str, *, options: Sequence[str] = (), show: Show = show_nothing
) -> Iterator[TransferProgress]:
    """From s3:// or gs:// to a path on the run's volume, inside the cluster. `options`: --extract, --anonymous, …"""
    files = backend_of(run).files(run, moving=True)
    try:
        for url in urls:
            with show("downloading in the cluster") as progress:
                done = files.fetch(url, files.path(path), options, progress)
            yield done
    finally:
        files.close()
