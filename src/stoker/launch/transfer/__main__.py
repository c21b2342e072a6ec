"""`python3 -m stoker.launch.transfer receive|send|wait …`: the end in a pod. It speaks over stdin and stdout."""

import os
import signal
import sys
import time
from pathlib import Path

from stoker.launch.transfer.frames import Cut, Frames, told
from stoker.launch.transfer.names import under
from stoker.launch.transfer.receive import receive
from stoker.launch.transfer.send import copied_item, send
from stoker.spec import contract
from stoker.spec.errors import UserError

SHOWN = 12  # names of a folder that are listed when a path in it is missing
IDLE = 600.0  # seconds that a pod waits for somebody to need it


class Stdio:
    """What was stdout is the pipe; what is printed by mistake goes to stderr."""

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
        os._exit(contract.EXIT_FAILED)  # nobody hears what it would say


def main(argv: list[str]) -> int:
    if argv[0] == "wait":
        return wait()
    frames, root = Frames(Stdio()), Path(argv[1])
    try:
        if argv[0] == "receive":
            done = told(frames, lambda: receive(frames, root))
        else:
            done = told(frames, lambda: _send(frames, root, root / argv[2]))
    except Cut as e:
        print(f"stoker: {e}", file=sys.stderr)
        return contract.EXIT_SAVED
    return contract.EXIT_DONE if done else contract.EXIT_USER


def wait() -> int:
    """Ends when no other process has been in this pod for a while: a laptop that is shut leaves nothing behind."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # what is left to the first process of a pod is not kept as a zombie
    last = time.monotonic()
    while time.monotonic() - last < IDLE:
        time.sleep(1)
        if any(name.isdigit() and int(name) not in (1, os.getpid()) for name in os.listdir("/proc")):
            last = time.monotonic()
    return contract.EXIT_DONE


def _send(frames: Frames, root: Path, path: Path) -> None:
    if not under(root, path).exists():
        raise UserError(f"there is no {path}", remedy=_others(path))
    send(frames, [copied_item(path, "")])


def _others(path: Path) -> str:
    """What the nearest folder above a missing path holds."""
    above = next(folder for folder in path.parents if folder.is_dir())
    names = sorted(name for name in os.listdir(above) if not name.startswith("."))
    more = ", …" if len(names) > SHOWN else ""
    return f"{above} holds: {', '.join(names[:SHOWN])}{more}" if names else f"{above} is empty"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
