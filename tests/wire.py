"""A TCP proxy on this machine that can be cut."""

import socket
import threading
import time
from contextlib import suppress

HOST = "127.0.0.1"


class Wire:
    """A port that forwards to another. It counts the bytes in both directions, can hold them, and can be cut."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._server = socket.create_server((HOST, 0))
        self._open: set[socket.socket] = set()
        self._up = threading.Event()
        self._up.set()
        self.sent = 0
        self.most: int | None = None
        """The total that may be sent; more is held."""
        self.back = 0
        self.most_back: int | None = None
        """The total that may be received; more is held."""
        self.refuse = 0
        """The number of the next connections that are cut before anything is forwarded."""
        self.cut_at: list[int] = []
        """Totals of sent bytes: at each of them the connection is cut, once."""
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def name(self) -> str:
        return f"{HOST}:{self._server.getsockname()[1]}"

    @property
    def url(self) -> str:
        return f"http://{self.name}"

    def cut(self) -> None:
        """Cut all open connections. New ones are forwarded."""
        for connection in list(self._open):
            _close(connection)

    def take_down(self) -> None:
        """Cut all connections, and refuse new ones until `mend`."""
        self._up.clear()
        self.cut()

    def mend(self) -> None:
        self._up.set()

    def close(self) -> None:
        self.take_down()
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                if self.refuse:
                    self.refuse -= 1
                    client.recv(1)
                    _close(client)
                    continue
                if not self._up.is_set():
                    client.close()
                    continue
                server = socket.create_connection((HOST, self._to))
                self._open |= {client, server}
                for source, target, up in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._forward, args=(source, target, up), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, up: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                while self._holds(len(data), up):
                    time.sleep(0.01)
                    if source not in self._open:
                        return
                self.sent += len(data) * up
                self.back += len(data) * (not up)
                target.sendall(data)
                if up and self.cut_at and self.sent >= self.cut_at[0]:
                    self.cut_at.pop(0)
                    break
        for connection in (source, target):
            self._open.discard(connection)
            _close(connection)

    def _holds(self, size: int, up: bool) -> bool:
        most, passed = (self.most, self.sent) if up else (self.most_back, self.back)
        return most is not None and passed + size > most


def _close(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
