"""The end that gets the files: what is whole stays, what was cut goes on, what is done says so in a manifest."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from stoker.launch.transfer.frames import Cut, Frames, Message
from stoker.launch.transfer.meter import Meter
from stoker.launch.transfer.target import Target
from stoker.spec.errors import UserError

TOLD = 0.2  # seconds between two tellings of how many bytes came
MARGIN = 16 << 20  # bytes that are left free on a volume


def receive(
    frames: Frames, root: Path, meter: Meter | None = None, *, into: str | None = None, exact: bool = False
) -> None:
    """Returns when the other end has sent all that it offered, and all of it was checked. Nothing outside the root.

    `into` is where it goes when this end says where, not the other; `exact`: there, even if it is a folder already.
    """
    meter = meter or Meter()
    with frames.kept_alive(), ExitStack() as held:
        offers = frames.message()["offer"]
        mine = {} if into is None else {"into": into, "exact": exact}
        targets = [Target(root, offer | mine) for offer in offers]
        for target in sorted(targets, key=lambda one: str(one.work)):  # one order for all: nobody waits in a circle
            if not target.is_whole():
                held.enter_context(target.alone(lambda path: frames.say(waiting=str(path))))
        wanted = [(number, *one) for number, target in enumerate(targets) for one in target.wanted()]
        total = sum(target.bytes for target in targets)
        there = total - sum(targets[number].sizes[name] - have for number, name, have, _ in wanted)
        _check_room(root, targets, wanted)
        files = sum(len(target.sizes) for target in targets)
        meter.begin(total=total, files=files, there=there, files_there=files - len(wanted))
        frames.say(wanted=wanted, there=there)
        _take(frames, targets, meter, {(number, name): have for number, name, have, _ in wanted})
        for target in targets:
            target.finish()
        frames.say(done=True)
    meter.end()


def _take(frames: Frames, targets: list[Target], meter: Meter, had: dict[tuple[int, str], int]) -> None:
    while "done" not in (message := frames.message()):
        if "keep" in message:
            number, name = message["keep"]
            targets[number].keep(name)
        elif "file" in message:
            number, name, start = message["file"]
            meter.skip(start - had[number, name])
            with _full(targets[number]):
                if not _one(frames, targets[number], name, start, meter):
                    frames.say(bad=name)
                    raise Cut(f"{name} came out damaged")
        meter.file()
        frames.say(got=name)


def _one(frames: Frames, target: Target, name: str, start: int, meter: Meter) -> bool:
    """A file from its start on, or from where it was cut."""
    untold, last = 0, 0.0
    with target.part(name, start) as part:
        while isinstance(heard := frames.hear(), bytes):
            part.write(heard)
            meter.move(len(heard))
            untold += len(heard)
            if time.monotonic() - last > TOLD:
                frames.say(at=untold)
                untold, last = 0, time.monotonic()
    frames.say(at=untold)
    return target.put(name, part, digest=str(_end(heard)))


def _end(message: Message) -> object:
    if "end" not in message:
        raise Cut("a file has no end")
    return message["end"]


def _check_room(root: Path, targets: list[Target], wanted: list[tuple[int, str, int, str]]) -> None:
    existing = next(path for path in (root, *root.parents) if path.is_dir())
    # what is there with other content is replaced after the new is whole: room for both is needed
    needed = sum(targets[number].sizes[name] - have for number, name, have, _ in wanted)
    free = shutil.disk_usage(existing).free
    if needed and needed + MARGIN > free:
        raise UserError(
            f"{_gib(needed)} are to be written to {root}, and {_gib(free)} are free there",
            remedy="Make room, or take a larger volume",
        )


@contextmanager
def _full(target: Target) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise UserError(
            f"{target.folder} cannot be written ({e.strerror or os.strerror(e.errno or 0)})",
            remedy="Make room there, then run the same command again: it goes on where it stopped",
        ) from e


def _gib(bytes: int) -> str:
    return f"{bytes / 2**30:.2f} GiB"
