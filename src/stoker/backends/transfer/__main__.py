"""`python3 -m stoker.backends.transfer receive|send|wait …`: the end in a pod, over stdin and stdout."""

import os
import signal
import sys
import time
from pathlib import Path

from stoker.backends.transfer.frames import Frames, PeerLost, report_errors
from stoker.backends.transfer.names import under
from stoker.backends.transfer.receive import receive
from stoker.backends.transfer.send import copied_item, send
from stoker.spec import contract
from stoker.spec.errors import NotFound

MAX_NAMES = 12  # of a folder that are listed when a path in it is missing
IDLE_TIMEOUT_S = 600.0  # an unused pod ends after this time


class Stdio:
    """Uses stdout as the pipe; accidental prints go to stderr."""

    def __init__(self) -> None:
        self._out = os.dup(1)
        os.dup2(2, 1)

    def read(self, most: int) -> bytes:
        return os.read(0, most)

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._out, rest) :]

    def close(self) -> None:
        os._exit(contract.EXIT_FAILED)  # the other end is gone


def main(argv: list[str]) -> int:
    if argv[0] == "wait":
        return wait()
    frames, root = Frames(Stdio()), Path(argv[1])
    try:
        if argv[0] == "receive":
            done = report_errors(frames, lambda: receive(frames, root))
        else:
            done = report_errors(frames, lambda: _send(frames, root, root / argv[2]))
    except PeerLost as e:
        print(f"stoker: {e}", file=sys.stderr)
        return contract.EXIT_SAVED
    return contract.EXIT_DONE if done else contract.EXIT_USER


def wait() -> int:
    """Ends when no other process has run in this pod for a while, so that a closed laptop leaves no pod behind."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # process 1 of a pod must reap orphans
    last = time.monotonic()
    while time.monotonic() - last < IDLE_TIMEOUT_S:
        time.sleep(1)
        if any(name.isdigit() and int(name) not in (1, os.getpid()) for name in os.listdir("/proc")):
            last = time.monotonic()
    return contract.EXIT_DONE


def _send(frames: Frames, root: Path, path: Path) -> None:
    if not under(root, path).exists():
        raise NotFound(f"there is no {path}", remedy=_others(path))
    send(frames, [copied_item(path, "")])


def _others(path: Path) -> str:
    """What the nearest existing folder above a missing path contains."""
    above = next(folder for folder in path.parents if folder.is_dir())
    names = sorted(name for name in os.listdir(above) if not name.startswith("."))
    more = ", …" if len(names) > MAX_NAMES else ""
    return f"{above} contains: {', '.join(names[:MAX_NAMES])}{more}" if names else f"{above} is empty"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
