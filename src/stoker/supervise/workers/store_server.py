"""Serves torch's key-value store, where the workers of an attempt find each other. It has no authentication.

By default torch listens on every address of the machine. Here the supervisor opens the socket, on the one address that
the workers use, and passes it on: to the worker of rank 0, or for a script to a process that serves the store, as
torchrun's agent does. Workers that connect earlier wait in the socket's backlog.
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
from stoker.supervise.parent_death import die_with_parent

STORE_MODULE = "stoker.train.tcp_store"
BACKLOG = 4096  # connections that may wait until the store is served
STORE_KILL_AFTER_S = 3.0


def open_store_socket(address: str) -> socket.socket:
    """Listens on this address only, on a port that the system chooses."""
    family = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((address, 0), family=family, backlog=BACKLOG)


def needs_store_server(spec: AnySpec) -> bool:
    """A script uses torch's own rendezvous, which connects without serving only when a served store is announced."""
    return isinstance(spec, ScriptSpec) and find_spec("torch") is not None


def is_store_expected(spec: ScriptSpec, *, world: int) -> bool:
    """Whether the script is likely to connect soon. A wrong guess costs the seconds that importing torch takes."""
    with suppress(OSError):
        return world > 1 and b"torch" in Path(spec.script).read_bytes()
    return False


class StoreServer:
    """A process that serves the store. Starts at once, or when the first worker connects: many scripts never do."""

    def __init__(
        self, listener: socket.socket, environment: Mapping[str, str], *, at_once: bool, note: Callable[[str], None]
    ) -> None:
        self._listener, self._environment, self._note = listener.dup(), environment, note
        self._process: subprocess.Popen[bytes] | None = None
        self._failed = self._closed = False
        if at_once:
            self._start()

    def poll(self) -> bool:
        """False when the process has ended: workers can no longer find each other."""
        if self._closed:
            return True
        if self._process is None:
            if select.select([self._listener], [], [], 0)[0]:
                self._start()
        elif self._process.poll() is not None and not self._failed:
            self._failed = True
            self._note(f"the process that serves torch's store ended with code {self._process.returncode}")
        return not self._failed

    def close(self) -> None:
        self._closed = True
        self._listener.close()
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STORE_KILL_AFTER_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        address, port = self._listener.getsockname()[:2]
        parent, fd = os.getpid(), self._listener.fileno()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", STORE_MODULE, address, str(port), str(fd)],
            env=dict(self._environment),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=(fd,),
            preexec_fn=lambda: die_with_parent(parent),
        )
        self._listener.close()
