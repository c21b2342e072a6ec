"""The end that has the files."""

import hashlib
import io
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from stoker.launch.transfer.frames import PIECE, Cut, Frames, Message
from stoker.launch.transfer.meter import Meter
from stoker.launch.transfer.names import check_file, listing
from stoker.spec.errors import StokerError, UserError


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """Files for one folder at the other end."""

    files: Mapping[str, Path | bytes]
    """By name, in the order in which they are to come."""
    into: str
    key: str | None = None
    """What the files are known by: a folder that is whole and has this key is not looked at again."""
    folders: tuple[str, ...] = ()
    """To be made in any case."""
    gone: tuple[str, ...] = ()
    """Files that must not be there any more."""
    base: str = ""
    """A name to be given below `into` where that is a folder already."""
    single: bool = False
    """It is one file, and `into` may be its name."""


def folder_item(folder: Path, into: str, key: str | None) -> Item:
    return Item(files=listing(folder), into=into, key=key)


def copied_item(path: Path, into: str) -> Item:
    """A file or a folder, as `cp` takes them."""
    if path.is_dir():
        return Item(files=listing(path), into=into, base=path.absolute().name)
    check_file(path, path.absolute().parent.resolve())
    return Item(files={path.name: path}, into=into, base=path.name, single=True)


def send(frames: Frames, items: Sequence[Item], meter: Meter | None = None) -> None:
    """Returns when all of it is there, and was checked there."""
    meter = meter or Meter()
    with frames.kept_alive():
        sizes = [{name: _size(source) for name, source in item.files.items()} for item in items]
        frames.say(offer=[_offer(item, size) for item, size in zip(items, sizes, strict=True)])
        plan = _plan(frames, meter)
        total = sum(sum(size.values()) for size in sizes)
        files = sum(map(len, sizes))
        meter.begin(total=total, files=files, there=plan["there"], files_there=files - len(plan["wanted"]))
        answers = _Answers(frames, meter)
        for number, name, have, digest in plan["wanted"]:
            answers.check()
            _send(frames, items[number].files[name], sizes[number][name], (number, name), (have, digest), answers)
        frames.say(done=True)
        answers.wait()
    meter.end()


class _Answers(threading.Thread):
    """Hears the other end while files go out: it must never have to wait with what it says."""

    def __init__(self, frames: Frames, meter: Meter) -> None:
        super().__init__(daemon=True)
        self._frames = frames
        self.meter = meter
        self._wrong: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            while "done" not in (message := self._frames.message()):
                self._take(message)
        except (StokerError, Cut) as e:
            self._wrong = e

    def check(self) -> None:
        if self._wrong:
            raise self._wrong

    def wait(self) -> None:
        self.join()
        self.check()

    def _take(self, message: Message) -> None:
        if "at" in message:
            self.meter.move(message["at"])
        elif "got" in message:
            self.meter.file()
        elif "bad" in message:
            raise Cut(f"{message['bad']} came out damaged")


def _send(
    frames: Frames, source: Path | bytes, size: int, whose: tuple[int, str], have: tuple[int, str], answers: _Answers
) -> None:
    number, name = whose
    told = source if isinstance(source, Path) else name
    try:
        with _open(source) as file:
            digest, start = _prefix(file, *have) if have[0] <= size else (hashlib.sha256(), 0)
            answers.meter.skip(start - have[0] if start < have[0] else 0)
            if start == size > 0:
                frames.say(keep=[number, name])
                return
            frames.say(file=[number, name, start])
            while start < size:
                data = file.read(min(PIECE, size - start))
                if not data:
                    raise UserError(f"{told} was cut short while it was sent", remedy="Send it again, whole")
                digest.update(data)
                frames.send(data)
                answers.check()
                start += len(data)
            frames.say(end=digest.hexdigest())
    except OSError as e:
        raise UserError(f"{e.filename or told} cannot be read ({e.strerror})", remedy="Mend it, then go on") from e
    except Cut:
        answers.join(timeout=1)  # the other end may have said why before it went
        answers.check()
        raise


def _prefix(file: BinaryIO, have: int, theirs: str) -> tuple["hashlib._Hash", int]:
    """Where to go on, and the digest up to there: what the other end has counts only when it is the same."""
    digest, left = hashlib.sha256(), have
    while left and (data := file.read(min(1 << 20, left))):
        digest.update(data)
        left -= len(data)
    if have and not left and digest.hexdigest() == theirs:
        return digest, have
    file.seek(0)
    return hashlib.sha256(), 0


def _plan(frames: Frames, meter: Meter) -> Message:
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
        "files": {name: [sizes[name], _is_program(source)] for name, source in item.files.items()},
    }


def _size(source: Path | bytes) -> int:
    if isinstance(source, bytes):
        return len(source)
    try:
        return source.stat().st_size
    except OSError as e:
        raise UserError(f"{source} cannot be read ({e.strerror})", remedy="Mend it, then go on") from e


def _is_program(source: Path | bytes) -> bool:
    return isinstance(source, Path) and os.access(source, os.X_OK)


def _open(source: Path | bytes) -> BinaryIO:
    return io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb")
