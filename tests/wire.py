"""A wire on this machine that can break."""

import socket
import threading
import time
from contextlib import suppress

HOST = "127.0.0.1"


class Wire:
    """A port that leads to another; it counts what goes up and comes back, can hold it, and can be cut."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._server = socket.create_server((HOST, 0))
        self._open: set[socket.socket] = set()
        self._up = threading.Event()
        self._up.set()
        self.sent = 0
        self.most: int | None = None
        """Bytes that may go up from now on."""
        self.back = 0
        self.most_back: int | None = None
        """Bytes that may come back from now on."""
        self.refuse = 0
        """So many of the next connections are cut before anything has passed."""
        self.cut_at: list[int] = []
        """When so many bytes have gone up in all, the connection is cut, once each."""
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def name(self) -> str:
        return f"{HOST}:{self._server.getsockname()[1]}"

    @property
    def url(self) -> str:
        return f"http://{self.name}"

    def cut(self) -> None:
        """What is open; who connects anew gets through."""
        for one in list(self._open):
            _end(one)

    def take_down(self) -> None:
        """Nobody gets through until it is mended."""
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
                    _end(client)
                    continue
                if not self._up.is_set():
                    client.close()
                    continue
                there = socket.create_connection((HOST, self._to))
                self._open |= {client, there}
                for one, other, up in ((client, there, True), (there, client, False)):
                    threading.Thread(target=self._carry, args=(one, other, up), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket, up: bool) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                while self._holds(len(data), up):
                    time.sleep(0.01)
                    if one not in self._open:
                        return
                self.sent += len(data) * up
                self.back += len(data) * (not up)
                other.sendall(data)
                if up and self.cut_at and self.sent >= self.cut_at[0]:
                    self.cut_at.pop(0)
                    break
        for each in (one, other):
            self._open.discard(each)
            _end(each)

    def _holds(self, size: int, up: bool) -> bool:
        most, passed = (self.most, self.sent) if up else (self.most_back, self.back)
        return most is not None and passed + size > most


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
