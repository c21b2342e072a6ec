"""A websocket that one thread reads while others write.

TLS wants one call at a time, and a descriptor that is closed while somebody reads from it may be another file's the
next moment: so the socket never blocks, calls take turns, and who waits is woken before it is closed.
"""

import base64
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from secrets import token_bytes

import httpcore
import httpx
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.utilities import ProtocolError

READ = 1 << 17
AT_ONCE = 0.001  # seconds
PARTING = 1.0  # seconds that a last word may take


class Closed(Exception):
    """The other end is gone, or this one has closed it."""


class NoUpgrade(Exception):
    """The server wants no websocket there. Its answer has been read."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__(str(response.status_code))
        self.response = response


@contextmanager
def websocket(client: httpx.Client, url: str, protocols: Sequence[str]) -> Iterator["WebSocket"]:
    """Raises NoUpgrade, and what httpx raises."""
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Key": base64.b64encode(token_bytes(16)).decode(),
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": ", ".join(protocols),
    }
    with client.stream("GET", url, headers=headers) as response:
        if response.status_code != httpx.codes.SWITCHING_PROTOCOLS:
            response.read()
            raise NoUpgrade(response)
        stream = response.extensions["network_stream"]
        first = b""
        with suppress(httpcore.ReadTimeout, httpcore.ReadError):  # what came along with the answer, if anything
            first = stream.read(READ, AT_ONCE)
        ws = WebSocket(stream.get_extra_info("socket"), first, response.headers.get("Sec-WebSocket-Protocol"))
        try:
            yield ws
        finally:
            ws.close()


class WebSocket:
    def __init__(self, connected: socket.socket, first: bytes, subprotocol: str | None) -> None:
        self.subprotocol = subprotocol
        connected.setblocking(False)
        self._socket = connected
        self._protocol = Connection(ConnectionType.CLIENT)
        self._messages: deque[bytes] = deque()
        self._partial = b""
        self._turn = threading.Lock()  # of the socket and the protocol's state
        self._writing = threading.Lock()  # frames do not mix
        self._reading = threading.Lock()
        self._ended = False
        self._woken, self._wake = socket.socketpair()
        if first:
            self._take(first)

    def send_bytes(self, data: bytes) -> None:
        self._send(BytesMessage(data))

    def receive_bytes(self, timeout: float | None = None) -> bytes:
        """The next message. Raises TimeoutError, and Closed when there will be none."""
        with self._reading:
            while not self._messages:
                if self._ended:
                    raise Closed("the connection is closed")
                self._take(self._read(timeout))
            return self._messages.popleft()

    def close(self) -> None:
        """Whoever reads is told; the socket itself is closed when nobody does."""
        if self._writing.acquire(timeout=PARTING):
            with suppress(Closed):
                self._write(CloseConnection(1000), PARTING)
            self._writing.release()
        self._ended = True
        self._wake.close()
        with self._reading, self._writing, suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._woken.close()

    def _take(self, data: bytes) -> None:
        if not data:
            self._ended = True
            return
        answers: list[Event] = []
        try:
            with self._turn:
                self._protocol.receive_data(data)
                for event in self._protocol.events():
                    if isinstance(event, Ping):
                        answers.append(event.response())
                    elif isinstance(event, CloseConnection):
                        self._ended = True
                    elif isinstance(event, BytesMessage | TextMessage):
                        block = event.data.encode() if isinstance(event.data, str) else bytes(event.data)
                        self._partial += block
                        if event.message_finished:
                            self._messages.append(self._partial)
                            self._partial = b""
        except ProtocolError as e:
            raise Closed(f"what came is no websocket's ({e})") from e
        for answer in answers:
            self._send(answer)

    def _send(self, event: Event) -> None:
        with self._writing:
            self._write(event, None)

    def _write(self, event: Event, patience: float | None) -> None:
        try:
            with self._turn:
                rest = memoryview(self._protocol.send(event))
        except ProtocolError as e:
            raise Closed("the connection is closed") from e
        while rest:
            wanted = select.POLLOUT
            with self._turn:
                try:
                    rest = rest[self._socket.send(rest) :]
                    continue
                except ssl.SSLWantReadError:
                    wanted = select.POLLIN
                except (BlockingIOError, ssl.SSLWantWriteError):
                    pass
                except OSError as e:
                    raise Closed(str(e)) from e
            if not self._wait(wanted, patience):
                raise Closed("the other end takes nothing")

    def _read(self, timeout: float | None) -> bytes:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            wanted = select.POLLIN
            with self._turn:
                try:
                    return self._socket.recv(READ)
                except ssl.SSLWantWriteError:
                    wanted = select.POLLOUT
                except (BlockingIOError, ssl.SSLWantReadError):
                    pass
                except OSError as e:
                    raise Closed(str(e)) from e
            if not self._wait(wanted, None if end is None else max(0.0, end - time.monotonic())):
                raise TimeoutError

    def _wait(self, wanted: int, seconds: float | None) -> bool:
        """False when it took too long. Raises Closed when this end was closed meanwhile."""
        poll = select.poll()
        poll.register(self._socket, wanted)
        poll.register(self._woken, select.POLLIN)
        ready = poll.poll(None if seconds is None else seconds * 1000)
        if self._ended and any(descriptor == self._woken.fileno() for descriptor, _ in ready):
            raise Closed("the connection was closed")
        return bool(ready)
