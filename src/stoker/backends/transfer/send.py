"""The end that sends files."""

import hashlib
import io
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from stoker.backends.transfer.frames import PIECE, Frames, Message, PeerLost
from stoker.backends.transfer.meter import TransferMeter
from stoker.backends.transfer.names import check_file, listing
from stoker.spec.errors import UserError


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """Files for one folder at the other end."""

    files: Mapping[str, Path | bytes]
    """By name, in the order in which they are sent."""
    into: str
    key: str | None = None
    """Identifies the content: a complete folder with this key is not checked again."""
    folders: tuple[str, ...] = ()
    """Created even if empty."""
    gone: tuple[str, ...] = ()
    """Files to delete."""
    base: str = ""
    """The name below `into`, if that is an existing folder."""
    single: bool = False
    """It is a single file, and `into` may be its name."""


def folder_item(folder: Path, into: str, key: str | None) -> Item:
    return Item(files=listing(folder), into=into, key=key)


def copied_item(path: Path, into: str) -> Item:
    """A file or a folder, with the rules of `cp`."""
    if path.is_dir():
        return Item(files=listing(path), into=into, base=path.absolute().name)
    check_file(path, path.absolute().parent.resolve())
    return Item(files={path.name: path}, into=into, base=path.name, single=True)


def send(frames: Frames, items: Sequence[Item], meter: TransferMeter | None = None) -> None:
    """Returns when all of it has arrived and was verified."""
    meter = meter or TransferMeter()
    with frames.kept_alive():
        sizes = [{name: _size(source) for name, source in item.files.items()} for item in items]
        frames.send_message(offer=[_offer(item, size) for item, size in zip(items, sizes, strict=True)])
        plan = _plan(frames, meter)
        total = sum(sum(size.values()) for size in sizes)
        files = sum(map(len, sizes))
        meter.begin(total=total, files=files, present=plan["present"], files_present=files - len(plan["wanted"]))
        answers = _Answers(frames, meter)
        for number, name, have, digest in plan["wanted"]:
            answers.check()
            _send(frames, items[number].files[name], sizes[number][name], (number, name), (have, digest), answers)
        frames.send_message(done=True)
        answers.wait()
    meter.end()


class _Answers(threading.Thread):
    """Receives messages while files are sent: the other end must never block on them."""

    def __init__(self, frames: Frames, meter: TransferMeter) -> None:
        super().__init__(daemon=True)
        self._frames = frames
        self.meter = meter
        self._error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            while "done" not in (message := self._frames.message()):
                self._handle(message)
        except Exception as e:  # raised again in `check`
            self._error = e

    def check(self) -> None:
        if self._error:
            raise self._error

    def wait(self) -> None:
        self.join()
        self.check()

    def _handle(self, message: Message) -> None:
        if "at" in message:
            self.meter.move(message["at"])
        elif "got" in message:
            self.meter.file()
        elif "bad" in message:
            raise PeerLost(f"{message['bad']} was damaged on the way")


def _send(
    frames: Frames, source: Path | bytes, size: int, target: tuple[int, str], have: tuple[int, str], answers: _Answers
) -> None:
    number, name = target
    label = str(source) if isinstance(source, Path) else name
    with _read_errors(label):
        file = _open(source)
    try:
        with file:
            with _read_errors(label):
                digest, start = _prefix(file, *have) if have[0] <= size else (hashlib.sha256(), 0)
            answers.meter.skip(start - have[0] if start < have[0] else 0)
            if start == size > 0:
                frames.send_message(keep=[number, name])
                return
            frames.send_message(file=[number, name, start])
            while start < size:
                with _read_errors(label):
                    data = file.read(min(PIECE, size - start))
                if not data:
                    raise UserError(f"{label} was truncated while it was sent", remedy="Send it again")
                digest.update(data)
                frames.send_bytes(data)
                answers.check()
                start += len(data)
            frames.send_message(end=digest.hexdigest())
    except PeerLost:
        answers.join(timeout=1)  # the other end may have reported why before it ended
        answers.check()
        raise


@contextmanager
def _read_errors(label: str) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise UserError(
            f"{label} cannot be read ({e.strerror})", remedy="Fix it, then run the same command again"
        ) from e


def _prefix(file: BinaryIO, have: int, peer_digest: str) -> tuple["hashlib._Hash", int]:
    """The position to resume at, and the digest up to it: `have` if the peer's first bytes are equal, else 0."""
    digest, left = hashlib.sha256(), have
    while left and (data := file.read(min(1 << 20, left))):
        digest.update(data)
        left -= len(data)
    if have and not left and digest.hexdigest() == peer_digest:
        return digest, have
    file.seek(0)
    return hashlib.sha256(), 0


def _plan(frames: Frames, meter: TransferMeter) -> Message:
    while True:
        message = frames.message()
        if "wanted" in message:
            return message
        meter.wait(f"another transfer into {message['waiting']} is under way")


def _offer(item: Item, sizes: Mapping[str, int]) -> Message:
    return {
        "into": item.into,
        "key": item.key,
        "base": item.base,
        "single": item.single,
        "folders": list(item.folders),
        "gone": list(item.gone),
        "files": {name: [sizes[name], _is_executable(source)] for name, source in item.files.items()},
    }


def _size(source: Path | bytes) -> int:
    if isinstance(source, bytes):
        return len(source)
    with _read_errors(str(source)):
        return source.stat().st_size


def _is_executable(source: Path | bytes) -> bool:
    return isinstance(source, Path) and os.access(source, os.X_OK)


def _open(source: Path | bytes) -> BinaryIO:
    return io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb")
