"""The wire between two pods: a small server that echoes, takes and gives bytes, and what measures through it."""

import hmac
import json
import socket
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

Message = dict[str, Any]

STREAMS = 4  # connections at once: clouds slow down a single one, and one of Python's alone cannot fill a fast link
BLOCK = 1 << 18
PINGS, PING_TIME = 50, 0.2  # so many, or as many as there is time for
LEAST_PINGS = 3
PATIENCE = 3.0  # seconds of silence after which a connection counts as dead
STALLED = 1.0  # seconds without the first byte: what is small gets through, and what is large does not
SMALLER = (1400, 1280, 576)  # bytes of packets that are tried when large ones do not arrive
HEADERS = 40  # bytes of IPv4 and TCP in each
LONGEST = 512  # bytes of the first line
NOTHING: Message = {"bytes": 0, "seconds": 0.0, "waited": 0.0}
IP_MTU, IPV6_MTU = 14, 24  # Linux' numbers; Python has no names for them


class Server:
    def __init__(self, address: str, port: int, token: str) -> None:
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        self._listener = socket.create_server((address, port), family=family, backlog=64)
        self._token = token
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # too many at a time
                time.sleep(0.1)
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, ValueError):
            connection.settimeout(PATIENCE)
            asked = _line(connection)
            if not hmac.compare_digest(str(asked.get("token")).encode(), self._token.encode()):
                return
            if asked["mode"] == "echo":
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while data := connection.recv(64):
                    connection.sendall(data)
            elif asked["mode"] == "take":
                taken = _take(connection, asked["seconds"])
                connection.sendall(json.dumps(taken).encode() + b"\n")
                while connection.recv(BLOCK):  # what is still on its way; a close before would lose our own word
                    pass
            elif asked["mode"] == "give":
                _give(connection, asked["seconds"])


def link(address: str, port: int, token: str, *, seconds: float) -> Message:
    """Latency, and bits both ways. `fits`: bytes of the largest packet that arrives, where larger ones do not."""
    try:
        found = _latency(address, port, token)
    except OSError as e:
        return {"error": _why(e)}
    there, back, busy = _rates(address, port, token, seconds, None)
    fits = None
    if not there or not back:
        for size in SMALLER:
            there, back, busy = _rates(address, port, token, seconds, size - HEADERS)
            if there and back:
                fits = size
                break
    return found | {"gbits": there, "back": back, "fits": fits, "busy": busy}


def _latency(address: str, port: int, token: str) -> Message:
    with _connection(address, port, token, "echo", 0.0) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        spent: list[float] = []
        end = time.monotonic() + PING_TIME
        while len(spent) <= LEAST_PINGS or (len(spent) < PINGS and time.monotonic() < end):
            began = time.monotonic()
            connection.sendall(b"x" * 64)
            got = 0
            while got < 64:
                data = connection.recv(64)
                if not data:
                    raise ConnectionResetError("it hung up")
                got += len(data)
            spent.append(time.monotonic() - began)
        six = connection.family == socket.AF_INET6
        level, option = (socket.IPPROTO_IPV6, IPV6_MTU) if six else (socket.IPPROTO_IP, IP_MTU)
        return {
            "ms": 1000 * statistics.median(spent[1:]),  # the first is late: the other end has only just begun
            "own": connection.getsockname()[0],
            "mtu": connection.getsockopt(level, option),
        }


def _rates(address: str, port: int, token: str, seconds: float, most: int | None) -> tuple[float, float, float]:
    """Gbit/s there and back, 0 where nothing arrives; and the share of the time that an end waited for a processor.

    `most`: bytes of data in each packet.
    """

    def there(_: int) -> Message:
        waited = _waited()
        with suppress(OSError, ValueError), _connection(address, port, token, "take", seconds, most) as connection:
            with suppress(TimeoutError):  # the other end counts what came of it all the same
                _give(connection, seconds)
            taken = _line(connection)
            return taken | {"waited": max(taken["waited"], _waited() - waited)}
        return NOTHING

    def back(_: int) -> Message:
        with suppress(OSError), _connection(address, port, token, "give", seconds, most) as connection:
            return _take(connection, seconds)
        return NOTHING

    with ThreadPoolExecutor(STREAMS) as pool:
        one_way, other_way = list(pool.map(there, range(STREAMS))), list(pool.map(back, range(STREAMS)))
    busy = max(one["waited"] for one in one_way + other_way) / seconds
    return _gbits(one_way), _gbits(other_way), busy


def _waited() -> float:
    """Seconds that this thread was ready to run and could not, so far."""
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _gbits(taken: list[Message]) -> float:
    longest = max(one["seconds"] for one in taken)
    total: int = sum(one["bytes"] for one in taken)
    return 8e-9 * total / longest if longest else 0.0


def _connection(
    address: str, port: int, token: str, mode: str, seconds: float, most: int | None = None
) -> socket.socket:
    family, kind, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    connection = socket.socket(family, kind)
    try:
        connection.settimeout(PATIENCE)
        if most is not None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, most)
        connection.connect(where)
        connection.sendall(json.dumps({"token": token, "mode": mode, "seconds": seconds}).encode() + b"\n")
    except BaseException:
        connection.close()
        raise
    return connection


def _give(connection: socket.socket, seconds: float) -> None:
    block, end = b"\0" * BLOCK, time.monotonic() + seconds
    connection.settimeout(seconds + STALLED)
    while time.monotonic() < end:
        connection.send(block)
    connection.shutdown(socket.SHUT_WR)


def _take(connection: socket.socket, seconds: float) -> Message:
    """Counted from the first byte; what comes long after the end of a slow link's time is not waited for."""
    room, waited = bytearray(BLOCK), _waited()
    connection.settimeout(seconds + STALLED)
    connection.recv_into(room)
    began = last = time.monotonic()
    total = 0
    with suppress(TimeoutError):
        while time.monotonic() - began < 1.5 * seconds and (got := connection.recv_into(room)):
            total, last = total + got, time.monotonic()
    return {"bytes": total, "seconds": last - began, "waited": _waited() - waited}


def _line(connection: socket.socket) -> Message:
    found, end = b"", time.monotonic() + PATIENCE
    while not found.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte or len(found) > LONGEST or time.monotonic() > end:
            raise ValueError("no line")
        found += byte
    message: Message = json.loads(found)
    return message


def _why(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "dropped"
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    return error.strerror or str(error)
