"""A command in a pod, as a pair of streams."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import BinaryIO, cast

from stoker.kube import Cluster, Forbidden, Lost, Refused, Unreachable
from stoker.launch.transfer.frames import Cut
from stoker.spec.errors import StokerError, UserError

STDERR_KEPT = 64 << 10  # bytes of what it complains of
BUFFER = 1 << 20
CANNOT = {126, 127}  # what a shell would say of a program that is not there
NO_STOKER = (
    "Use an image that has Stoker: stoker image build, or on.registry at launch, makes one; or mount a volume that has "
    "it with on.pod and name it with env.PYTHONPATH: all pods of a run get both"
)
NO_PROGRAM = "executable file not found"


class Execution:
    """Raises Cut where another pod, or another try, may do better."""

    def __init__(self, cluster: Cluster, pod: str, argv: Sequence[str], *, container: str, image: str) -> None:
        self._mine, theirs = socket.socketpair()  # not pipes: a reader of a closed one would never wake
        for one in (self._mine, theirs):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        self._cluster, self._argv, self._container = cluster, argv, container
        self._image = image
        self._wrong: StokerError | None = None
        self._errors = _Errors()
        self.pod = pod
        self.code: int | None = None
        """What it ended with."""
        self.heard = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, args=(theirs,), daemon=True)
        self._thread.start()

    @property
    def stderr(self) -> str:
        return bytes(self._errors.data).decode(errors="replace")

    def read(self, most: int) -> bytes:
        data = self._mine.recv(most)
        self.heard = self.heard or bool(data)
        if not data:
            self._check()
        return data

    def write(self, data: bytes) -> None:
        self._mine.sendall(data)

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):  # it has ended by itself
            self._mine.shutdown(socket.SHUT_RDWR)

    def lines(self) -> Iterator[str]:
        """What it prints, until it ends."""
        held = b""
        while data := self.read(1 << 16):
            *whole, held = (held + data).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace")
        if held:
            yield held.decode(errors="replace")

    def _run(self, theirs: socket.socket) -> None:
        stdin, stdout = theirs.makefile("rb", buffering=0), theirs.makefile("wb")
        try:
            self.code = self._cluster.exec(
                self.pod,
                self._argv,
                container=self._container,
                stdin=cast(BinaryIO, stdin),
                stdout=cast(BinaryIO, stdout),
                stderr=cast(BinaryIO, self._errors),
            )
        except StokerError as e:
            self._wrong = e
        except Exception as e:  # nobody listens any more, or what the HTTP library of the day raises
            self._wrong = Lost(f"the connection to pod {self.pod} broke off ({e})", remedy="Try again")
        finally:
            with suppress(OSError):
                theirs.shutdown(socket.SHUT_RDWR)
            theirs.close()

    def _check(self) -> None:
        """Why nothing comes any more."""
        if self._closed:  # by this end: of a connection that is dead the other may hear much later
            raise Cut(f"nothing was heard of pod {self.pod}")
        self._thread.join()
        wrong = self._wrong
        if isinstance(wrong, Refused) and NO_PROGRAM in str(wrong):
            raise UserError(f"the image {self._image} has no {self._argv[0]}", remedy="Use one with Python and Stoker")
        if isinstance(wrong, Forbidden):
            raise wrong
        if isinstance(wrong, (Refused, Lost, Unreachable)):
            raise Cut(wrong.problem) from wrong
        if wrong is not None:
            raise wrong
        if self.code is None:
            raise Cut(f"the connection to pod {self.pod} broke off")
        if not self.heard and (self.code in CANNOT or "No module named" in self.stderr):
            raise UserError(
                f"the image {self._image} cannot run Stoker: {last_line(self.stderr)}",
                remedy=NO_STOKER,
            )


class _Errors:
    """The end of what a command complains of."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, block: bytes) -> int:
        self.data += block
        del self.data[:-STDERR_KEPT]
        return len(block)

    def flush(self) -> None:
        """It is kept at once."""


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it said nothing")
