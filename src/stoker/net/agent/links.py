"""Latency and bandwidth between two pods: a small server that echoes, receives and sends bytes, and its client."""

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

STREAMS = 4  # connections at once: clouds throttle a single one, and one Python thread cannot fill a fast link
BLOCK_BYTES = 1 << 18
PINGS, PINGS_S = 50, 0.2  # at most
LEAST_PINGS = 3
IDLE_TIMEOUT_S = 3.0  # a connection without traffic for this long is dead
STALLED_AFTER_S = 1.0  # without the first byte: small packets arrive, and large ones do not
SMALLER_PACKETS = (1400, 1280, 576)  # bytes; tried in turn when packets of the MTU do not arrive
HEADER_BYTES = 40  # of IPv4 and TCP, in each packet
REQUEST_BYTES = 512  # of the first line, at most
NOTHING: Message = {"bytes": 0, "seconds": 0.0, "waited": 0.0}
IP_MTU, IPV6_MTU = 14, 24  # of Linux; Python has no names for them


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
            except OSError:  # too many connections at a time
                time.sleep(0.1)
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, ValueError):
            connection.settimeout(IDLE_TIMEOUT_S)
            request = _line(connection)
            if not hmac.compare_digest(str(request.get("token")).encode(), self._token.encode()):
                return
            if request["mode"] == "echo":
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while data := connection.recv(64):
                    connection.sendall(data)
            elif request["mode"] == "take":
                received = _receive(connection, request["seconds"])
                connection.sendall(json.dumps(received).encode() + b"\n")
                while connection.recv(BLOCK_BYTES):  # closing before the rest has arrived would discard our answer
                    pass
            elif request["mode"] == "give":
                _send(connection, request["seconds"])


def link(address: str, port: int, token: str, *, seconds: float) -> Message:
    """Latency, and Gbit/s in both directions. `fits`: bytes of the largest packet that arrives, if not the MTU."""
    try:
        latency = _latency(address, port, token)
    except OSError as e:
        return {"error": _reason(e)}
    forth, back, busy = _rates(address, port, token, seconds, None)
    fits = None
    if not forth or not back:
        for size in SMALLER_PACKETS:
            forth, back, busy = _rates(address, port, token, seconds, size - HEADER_BYTES)
            if forth and back:
                fits = size
                break
    return latency | {"gbits": forth, "back": back, "fits": fits, "busy": busy}


def _latency(address: str, port: int, token: str) -> Message:
    with _connection(address, port, token, "echo", 0.0) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        spent: list[float] = []
        end = time.monotonic() + PINGS_S
        while len(spent) <= LEAST_PINGS or (len(spent) < PINGS and time.monotonic() < end):
            began = time.monotonic()
            connection.sendall(b"x" * 64)
            got = 0
            while got < 64:
                data = connection.recv(64)
                if not data:
                    raise ConnectionResetError("the peer closed the connection")
                got += len(data)
            spent.append(time.monotonic() - began)
        is_ipv6 = connection.family == socket.AF_INET6
        level, option = (socket.IPPROTO_IPV6, IPV6_MTU) if is_ipv6 else (socket.IPPROTO_IP, IP_MTU)
        return {
            "ms": 1000 * statistics.median(spent[1:]),  # the first includes the start of the other end's thread
            "own": connection.getsockname()[0],
            "mtu": connection.getsockopt(level, option),
        }


def _rates(address: str, port: int, token: str, seconds: float, most: int | None) -> tuple[float, float, float]:
    """Gbit/s forth and back, 0 if nothing arrives; and the share of the time that one end waited for a CPU.

    `most`: bytes of data in each packet.
    """

    def forth(_: int) -> Message:
        waited = _waited()
        with suppress(OSError, ValueError), _connection(address, port, token, "take", seconds, most) as connection:
            with suppress(TimeoutError):  # the other end reports what has arrived
                _send(connection, seconds)
            received = _line(connection)
            return received | {"waited": max(received["waited"], _waited() - waited)}
        return NOTHING

    def back(_: int) -> Message:
        with suppress(OSError), _connection(address, port, token, "give", seconds, most) as connection:
            return _receive(connection, seconds)
        return NOTHING

    with ThreadPoolExecutor(STREAMS) as pool:
        sent, returned = list(pool.map(forth, range(STREAMS))), list(pool.map(back, range(STREAMS)))
    busy = max(stream["waited"] for stream in sent + returned) / seconds
    return _gbits(sent), _gbits(returned), busy


def _waited() -> float:
    """Seconds that this thread has waited for a CPU so far."""
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _gbits(streams: list[Message]) -> float:
    longest = max(stream["seconds"] for stream in streams)
    total: int = sum(stream["bytes"] for stream in streams)
    return 8e-9 * total / longest if longest else 0.0


def _connection(
    address: str, port: int, token: str, mode: str, seconds: float, most: int | None = None
) -> socket.socket:
    family, kind, _, _, endpoint = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    connection = socket.socket(family, kind)
    try:
        connection.settimeout(IDLE_TIMEOUT_S)
        if most is not None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, most)
        connection.connect(endpoint)
        connection.sendall(json.dumps({"token": token, "mode": mode, "seconds": seconds}).encode() + b"\n")
    except BaseException:
        connection.close()
        raise
    return connection


def _send(connection: socket.socket, seconds: float) -> None:
    block, end = b"\0" * BLOCK_BYTES, time.monotonic() + seconds
    connection.settimeout(seconds + STALLED_AFTER_S)
    while time.monotonic() < end:
        connection.send(block)
    connection.shutdown(socket.SHUT_WR)


def _receive(connection: socket.socket, seconds: float) -> Message:
    """Measured from the first byte. Does not wait for the rest of a slow link's data."""
    buffer, waited = bytearray(BLOCK_BYTES), _waited()
    connection.settimeout(seconds + STALLED_AFTER_S)
    connection.recv_into(buffer)
    began = last = time.monotonic()
    total = 0
    with suppress(TimeoutError):
        while time.monotonic() - began < 1.5 * seconds and (got := connection.recv_into(buffer)):
            total, last = total + got, time.monotonic()
    return {"bytes": total, "seconds": last - began, "waited": _waited() - waited}


def _line(connection: socket.socket) -> Message:
    line, end = b"", time.monotonic() + IDLE_TIMEOUT_S
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte or len(line) > REQUEST_BYTES or time.monotonic() > end:
            raise ValueError("no line")
        line += byte
    message: Message = json.loads(line)
    return message


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "dropped"
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    return error.strerror or str(error)
