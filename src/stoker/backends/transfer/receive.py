"""The end that receives files: complete ones are kept, partial ones are resumed, and a manifest marks the end."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from stoker.backends.transfer.frames import Frames, Message, PeerLost
from stoker.backends.transfer.meter import TransferMeter
from stoker.backends.transfer.target import Target
from stoker.spec.errors import UserError

ACKNOWLEDGE_EVERY_S = 0.2
MARGIN = 16 << 20  # bytes that stay free on a volume


def receive(
    frames: Frames, root: Path, meter: TransferMeter | None = None, *, into: str | None = None, exact: bool = False
) -> None:
    """Returns when the other end has sent all that it offered, and all of it was verified. Never leaves the root.

    `into`: the target, where this end decides it; `exact`: even if it is an existing folder.
    """
    meter = meter or TransferMeter()
    with frames.kept_alive(), ExitStack() as locks:
        offers = frames.message()["offer"]
        own_target = {} if into is None else {"into": into, "exact": exact}
        targets = [Target(root, offer | own_target) for offer in offers]
        for target in sorted(targets, key=lambda target: str(target.work)):  # always in this order: no deadlock
            if not target.is_complete():
                locks.enter_context(target.locked(lambda path: frames.send_message(waiting=str(path))))
        wanted = [(number, *file) for number, target in enumerate(targets) for file in target.wanted()]
        total = sum(target.bytes for target in targets)
        present = total - sum(targets[number].sizes[name] - have for number, name, have, _ in wanted)
        _check_space(root, targets, wanted)
        files = sum(len(target.sizes) for target in targets)
        meter.begin(total=total, files=files, present=present, files_present=files - len(wanted))
        frames.send_message(wanted=wanted, present=present)
        _receive_files(frames, targets, meter, {(number, name): have for number, name, have, _ in wanted})
        for target in targets:
            target.finish()
        frames.send_message(done=True)
    meter.end()


def _receive_files(
    frames: Frames, targets: list[Target], meter: TransferMeter, had: dict[tuple[int, str], int]
) -> None:
    while "done" not in (message := frames.message()):
        if "keep" in message:
            number, name = message["keep"]
            targets[number].keep(name)
        elif "file" in message:
            number, name, start = message["file"]
            meter.skip(start - had[number, name])
            with _write_errors(targets[number]):
                if not _receive_file(frames, targets[number], name, start, meter):
                    frames.send_message(bad=name)
                    raise PeerLost(f"{name} was damaged on the way")
        meter.file()
        frames.send_message(got=name)


def _receive_file(frames: Frames, target: Target, name: str, start: int, meter: TransferMeter) -> bool:
    """A file from its start, or from where it was interrupted."""
    unacknowledged, last = 0, 0.0
    with target.part(name, start) as part:
        while isinstance(block := frames.receive(), bytes):
            part.write(block)
            meter.move(len(block))
            unacknowledged += len(block)
            if time.monotonic() - last > ACKNOWLEDGE_EVERY_S:
                frames.send_message(at=unacknowledged)
                unacknowledged, last = 0, time.monotonic()
    frames.send_message(at=unacknowledged)
    return target.put(name, part, digest=str(_end(block)))


def _end(message: Message) -> object:
    if "end" not in message:
        raise PeerLost("a file has no end")
    return message["end"]


def _check_space(root: Path, targets: list[Target], wanted: list[tuple[int, str, int, str]]) -> None:
    existing = next(path for path in (root, *root.parents) if path.is_dir())
    # a file with other content is replaced once the new one is complete: both need space
    needed = sum(targets[number].sizes[name] - have for number, name, have, _ in wanted)
    free = shutil.disk_usage(existing).free
    if needed and needed + MARGIN > free:
        raise UserError(
            f"{_gib(needed)} must be written to {root}, and {_gib(free)} are free there",
            remedy="Free some space, or use a larger volume",
        )


@contextmanager
def _write_errors(target: Target) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise UserError(
            f"{target.folder} cannot be written ({e.strerror or os.strerror(e.errno or 0)})",
            remedy="Free some space there, then run the same command again: it resumes where it stopped",
        ) from e


def _gib(bytes: int) -> str:
    return f"{bytes / 2**30:.2f} GiB"
