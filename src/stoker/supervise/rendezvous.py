"""Where the workers of an attempt meet: torch's key-value store, which has no authentication.

By itself torch listens on every address of the machine. Here the supervisor opens the socket, on the one address that
the workers use, and hands it on: to the worker of rank 0, or to a process that serves the store for a script, as
torchrun's agent does. Workers that connect earlier wait in the socket's queue.
"""

import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from stoker.spec.run import AnySpec, ScriptSpec
from stoker.supervise.lifeline import die_with

STORE = "stoker.train.store"
QUEUE = 4096  # connections that may wait until the store is served
KILL_AFTER_S = 3.0


def listen(address: str) -> socket.socket:
    """A port that the system chooses, on this address alone."""
    family = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((address, 0), family=family, backlog=QUEUE)


def needs_server(spec: AnySpec) -> bool:
    """A script calls torch's own rendezvous, which connects only when it is told that the store is served already."""
    return isinstance(spec, ScriptSpec) and find_spec("torch") is not None


def expects_server(spec: ScriptSpec, *, world: int) -> bool:
    """Whether the script is likely to connect soon. A wrong guess costs the seconds that importing torch takes."""
    with suppress(OSError):
        return world > 1 and b"torch" in Path(spec.script).read_bytes()
    return False


class StoreServer:
    """A process that serves the store. It starts at once or when the first worker connects: many scripts never do."""

    def __init__(
        self, listener: socket.socket, environment: Mapping[str, str], *, at_once: bool, note: Callable[[str], None]
    ) -> None:
        self._listener, self._environment, self._note = listener.dup(), environment, note
        self._process: subprocess.Popen[bytes] | None = None
        self._lost = self._closed = False
        if at_once:
            self._start()

    def poll(self) -> bool:
        """False when it has ended, and no worker can meet another any more."""
        if self._closed:
            return True
        if self._process is None:
            if select.select([self._listener], [], [], 0)[0]:
                self._start()
        elif self._process.poll() is not None and not self._lost:
            self._lost = True
            self._note(f"the store that the workers meet at ended with code {self._process.returncode}")
        return not self._lost

    def close(self) -> None:
        self._closed = True
        self._listener.close()
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(KILL_AFTER_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        address, port = self._listener.getsockname()[:2]
        parent, fd = os.getpid(), self._listener.fileno()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", STORE, address, str(port), str(fd)],
            env=dict(self._environment),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=(fd,),
            preexec_fn=lambda: die_with(parent),
        )
        self._listener.close()
