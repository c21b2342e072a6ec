"""A command in a pod, as a pipe."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import BinaryIO, cast

from stoker.backends.transfer.frames import PeerLost
from stoker.kube import CannotExecute, Cluster, ClusterError, ConnectionLost, Forbidden, Refused, Unreachable
from stoker.spec import contract
from stoker.spec.errors import RunFailed, SavedForLater, StokerError, UserError

STDERR_KEPT = 64 << 10  # bytes of its last errors
BUFFER = 1 << 20
CANNOT_RUN = {1, 126, 127}  # Python cannot import the module, or a shell cannot run the program
NO_STOKER = (
    "Use an image with Stoker, built with: stoker image build, or on.registry at launch; or mount a volume that has it "
    "with on.pod, and add its path to env.PYTHONPATH"
)
KILLED = 128  # plus the number of the signal


class Execution:
    """Raises PeerLost where another pod, or another try, may succeed."""

    def __init__(self, cluster: Cluster, pod: str, argv: Sequence[str], *, container: str, image: str) -> None:
        self._socket, peer = socket.socketpair()  # not a pipe: its reader would not wake when the other side closes it
        for end in (self._socket, peer):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        self._cluster, self._argv, self._container = cluster, argv, container
        self._image = image
        self._error: ClusterError | None = None
        self._stderr = _LastBytes()
        self.pod = pod
        self.code: int | None = None
        """Its exit code."""
        self.has_answered = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, args=(peer,), daemon=True)
        self._thread.start()

    @property
    def stderr(self) -> str:
        return bytes(self._stderr.data).decode(errors="replace")

    def read(self, most: int) -> bytes:
        data = self._socket.recv(most)
        self.has_answered = self.has_answered or bool(data)
        if not data:
            self._check()
        return data

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):  # the command has ended
            self._socket.shutdown(socket.SHUT_RDWR)

    def lines(self) -> Iterator[str]:
        """The lines that it prints, until it ends."""
        rest = b""
        while data := self.read(1 << 16):
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace")
        if rest:
            yield rest.decode(errors="replace")

    def _run(self, peer: socket.socket) -> None:
        stdin, stdout = peer.makefile("rb", buffering=0), peer.makefile("wb")
        try:
            self.code = self._cluster.exec(
                self.pod,
                self._argv,
                container=self._container,
                stdin=cast(BinaryIO, stdin),
                stdout=cast(BinaryIO, stdout),
                stderr=cast(BinaryIO, self._stderr),
            )
        except ClusterError as e:
            self._error = e
        except Exception as e:  # this end was closed, or an error of the HTTP library
            self._error = ConnectionLost(f"the connection to pod {self.pod} broke off ({e})", remedy="Try again")
        finally:
            with suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
            peer.close()

    def _check(self) -> None:
        """Raises the reason why there is no more output."""
        if self._closed:  # by this end; the thread may notice a dead connection much later
            raise PeerLost(f"pod {self.pod} did not answer")
        self._thread.join()
        error = self._error
        if isinstance(error, CannotExecute):
            raise UserError(
                f"the image {self._image} cannot start {self._argv[0]}", remedy="Use an image with Python and Stoker"
            )
        if isinstance(error, Forbidden):
            raise error
        if isinstance(error, (Refused, ConnectionLost, Unreachable)):
            raise PeerLost(error.problem) from error
        if error is not None:
            raise error
        if self.code is None:
            raise PeerLost(f"the connection to pod {self.pod} broke off")
        if not self.has_answered and self.code in CANNOT_RUN:
            raise UserError(
                f"the image {self._image} cannot run Stoker: {last_line(self.stderr)}",
                remedy=NO_STOKER,
            )


class _LastBytes:
    """A stream that keeps the last bytes written to it."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, block: bytes) -> int:
        self.data += block
        del self.data[:-STDERR_KEPT]
        return len(block)

    def flush(self) -> None:
        """Nothing is buffered."""


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it printed nothing")


def check(command: Execution, verb: str) -> None:
    """Raises the error of a command that has failed, or PeerLost when it was killed."""
    if not command.code:
        return
    if command.code >= KILLED:
        raise PeerLost(f"it was killed in pod {command.pod}, with code {command.code}")
    raise _error(command, verb)


def _error(command: Execution, verb: str) -> StokerError:
    """From the last line that it printed to stderr, and its exit code."""
    line = last_line(command.stderr).removeprefix("stoker: ")
    if command.code == contract.EXIT_FAILED:
        return RunFailed(line, remedy="")
    if command.code == contract.EXIT_SAVED:
        return SavedForLater(line, remedy="")
    if command.code == contract.EXIT_USER:
        return UserError(line, remedy="")
    return UserError(
        f"stoker {verb} in pod {command.pod} ended with code {command.code}: {line}",
        remedy="Try again, or run it in a shell: stoker shell",
    )
