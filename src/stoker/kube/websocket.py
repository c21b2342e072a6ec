"""A websocket that one thread reads while others write.

OpenSSL allows one call at a time on a connection, and a descriptor that is closed during a read may be reused for
another file. So the socket never blocks, calls take turns, and waiting threads are woken before it is closed. (The
session of httpx2.websockets does not wake a thread that waits in receive or send when another one closes it.)
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

import httpcore2
import httpx2
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.utilities import ProtocolError

READ_BYTES = 1 << 17
FIRST_READ_TIMEOUT_S = 0.001
CLOSE_TIMEOUT_S = 1.0


class Closed(Exception):
    """The connection is closed, by either end."""


class NoUpgrade(Exception):
    """The server refused to open a websocket. Its response has been read."""

    def __init__(self, response: httpx2.Response) -> None:
        super().__init__(str(response.status_code))
        self.response = response


@contextmanager
def websocket(client: httpx2.Client, url: str, protocols: Sequence[str]) -> Iterator["WebSocket"]:
    """Opens a websocket. Raises NoUpgrade, and the errors of httpx2."""
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Key": base64.b64encode(token_bytes(16)).decode(),
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": ", ".join(protocols),
    }
    with client.stream("GET", url, headers=headers) as response:
        if response.status_code != httpx2.codes.SWITCHING_PROTOCOLS:
            response.read()
            raise NoUpgrade(response)
        stream = response.extensions["network_stream"]
        first = b""
        with suppress(httpcore2.ReadTimeout, httpcore2.ReadError):  # bytes that came along with the response
            first = stream.read(READ_BYTES, FIRST_READ_TIMEOUT_S)
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
        self._turn = threading.Lock()  # guards the socket and the protocol's state
        self._writing = threading.Lock()  # keeps frames whole
        self._reading = threading.Lock()
        self._ended = False
        self._woken, self._wake = socket.socketpair()
        if first:
            self._process(first)

    def send_bytes(self, data: bytes) -> None:
        self._send(BytesMessage(data))

    def receive_bytes(self, timeout: float | None = None) -> bytes:
        """The next message. Raises TimeoutError, and Closed when no more can come."""
        with self._reading:
            while not self._messages:
                if self._ended:
                    raise Closed("the connection is closed")
                self._process(self._read(timeout))
            return self._messages.popleft()

    def close(self) -> None:
        """Wakes readers and writers, then shuts the socket down."""
        if self._writing.acquire(timeout=CLOSE_TIMEOUT_S):
            with suppress(Closed):
                self._write(CloseConnection(1000), CLOSE_TIMEOUT_S)
            self._writing.release()
        self._ended = True
        self._wake.close()
        with self._reading, self._writing, suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._woken.close()

    def _process(self, data: bytes) -> None:
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
            raise Closed(f"the peer does not follow the websocket protocol ({e})") from e
        for answer in answers:
            self._send(answer)

    def _send(self, event: Event) -> None:
        with self._writing:
            self._write(event, None)

    def _write(self, event: Event, timeout: float | None) -> None:
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
            if not self._wait(wanted, timeout):
                raise Closed("the peer does not read")

    def _read(self, timeout: float | None) -> bytes:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            wanted = select.POLLIN
            with self._turn:
                try:
                    return self._socket.recv(READ_BYTES)
                except ssl.SSLWantWriteError:
                    wanted = select.POLLOUT
                except (BlockingIOError, ssl.SSLWantReadError):
                    pass
                except OSError as e:
                    raise Closed(str(e)) from e
            if not self._wait(wanted, None if end is None else max(0.0, end - time.monotonic())):
                raise TimeoutError

    def _wait(self, wanted: int, seconds: float | None) -> bool:
        """False on a timeout. Raises Closed if another thread has closed the connection."""
        poll = select.poll()
        poll.register(self._socket, wanted)
        poll.register(self._woken, select.POLLIN)
        ready = poll.poll(None if seconds is None else seconds * 1000)
        if self._ended and any(descriptor == self._woken.fileno() for descriptor, _ in ready):
            raise Closed("the connection was closed")
        return bool(ready)
