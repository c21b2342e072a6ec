"""Lines of JSON between supervisors.

A thread of its own talks, pings and listens, so that a slow disk never makes a node look dead. Who calls is a stranger
until he has proven that he knows the run's token, which itself is never sent.
"""

import hmac
import json
import queue
import secrets
import selectors
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]

PING = 1.0  # seconds between two signs of life
INTRODUCTION = 5.0  # seconds in which a stranger must have proven himself
FAREWELL = 3.0  # seconds in which the last words must have arrived
MOST_STRANGERS = 256  # at a time: nodes are strangers too when they come
LONGEST_OF_A_STRANGER = 4096  # bytes of a line
LONGEST = 1 << 20
MOST_UNSENT = 4 << 20  # bytes that wait for a peer which does not read


class Stranger(ConnectionError):
    """Whoever answers there does not know the token."""


@dataclass(slots=True)
class Peer:
    socket: socket.socket
    nonce: str
    known: bool = False
    inbox: bytearray = field(default_factory=bytearray)
    outbox: bytearray = field(default_factory=bytearray)
    since: float = field(default_factory=time.monotonic)
    heard: float = field(default_factory=time.monotonic)
    closing: bool = False


class Wire:
    """Peers are known by numbers. One that closes or is silent for `silence` seconds is gone, and that is told once."""

    def __init__(self, *, token: str, silence: float) -> None:
        self._token, self._silence = token, silence
        self.gone = threading.Event()
        """One who was known is gone; for who may not be able to hear the news."""
        self._peers: dict[int, Peer] = {}
        self._number = 0
        self._news: queue.SimpleQueue[tuple[int, Message | None]] = queue.SimpleQueue()
        self._lock = threading.Lock()  # over the peers and their outboxes
        self._selector = selectors.DefaultSelector()
        self._ear, self._bell = socket.socketpair()
        self._ear.setblocking(False)
        self._bell.setblocking(False)
        self._selector.register(self._ear, selectors.EVENT_READ)
        self._listener: socket.socket | None = None
        self._deadline: float | None = None  # set when all has been said
        self._pinged = 0.0
        self._broken = False
        self._thread = threading.Thread(target=self._talk, daemon=True, name="wire")

    def listen(self, address: str, port: int) -> int:
        """Returns the port, which the system chooses when it is 0."""
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        self._listener = socket.create_server((address, port), family=family)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread.start()
        number: int = self._listener.getsockname()[1]
        return number

    def connect(self, address: str, port: int, hello: Message) -> int:
        """Introduce oneself to who listens there, and have him do the same. OSError when that does not go well."""
        connection = socket.create_connection((address, port), timeout=INTRODUCTION)
        try:
            ours = secrets.token_hex(16)
            asked, rest = _read_line(connection, b"")
            connection.sendall(_line(hello | {"proof": self._proof("join", asked.get("nonce")), "nonce": ours}))
            answer, rest = _read_line(connection, rest)
            if not self._is_proof("lead", ours, answer):
                raise Stranger(f"{address}:{port} is no supervisor of this run")
        except BaseException:
            connection.close()
            raise
        peer = Peer(connection, "", known=True, inbox=bytearray(rest))
        number = self._add(peer)
        self._thread.start()
        return number

    def send(self, number: int, message: Message) -> None:
        """From any thread. To one who is gone it is said in vain."""
        with self._lock:
            if peer := self._peers.get(number):
                peer.outbox += _line(message)
        self._ring()

    def drop(self, number: int) -> None:
        with self._lock:
            if peer := self._peers.get(number):
                peer.closing = True
        self._ring()

    def news(self) -> list[tuple[int, Message | None]]:
        """What has been said since, in order; first by each his introduction, last that he is gone: None."""
        if self._broken:
            raise ConnectionError("nobody talks to the other nodes any more")
        found = []
        with suppress(queue.Empty):
            while True:
                found.append(self._news.get_nowait())
        return found

    def stop(self) -> None:
        """What was said last still arrives, if there is anybody to hear it."""
        if self._thread.is_alive():
            self._deadline = time.monotonic() + FAREWELL
            self._ring()
            self._thread.join()
        for end in (self._ear, self._bell, self._listener):
            if end:
                end.close()
        self._selector.close()

    def _ring(self) -> None:
        with suppress(OSError):  # it has rung enough
            self._bell.send(b"!")

    def _add(self, peer: Peer) -> int:
        peer.socket.setblocking(False)
        peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._number += 1
            self._peers[self._number] = peer
        self._selector.register(peer.socket, selectors.EVENT_READ, self._number)
        return self._number

    # in the thread

    def _talk(self) -> None:
        try:
            awake = time.monotonic()
            while self._deadline is None or (self._peers and time.monotonic() < self._deadline):
                for key, _ in self._selector.select(PING / 2):
                    if key.fileobj is self._ear:
                        self._ear.recv(4096)
                    elif key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._hear(key.data)
                slept, awake = time.monotonic() - awake, time.monotonic()
                if slept > PING and self._listener:  # we, or the whole machine: nobody is to blame for that silence
                    self._excuse(slept - PING)
                elif slept > self._silence:  # the leader has counted on: what came meanwhile may be old
                    break
                for number in list(self._peers):
                    self._look_after(number)
                if time.monotonic() - self._pinged >= PING:
                    self._pinged = time.monotonic()
            for number in list(self._peers):
                self._forget(number)
        except BaseException:
            self._broken = True
            self.gone.set()
            raise

    def _excuse(self, seconds: float) -> None:
        for peer in self._peers.values():
            peer.heard += seconds
            peer.since += seconds

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it has hung up already
            return
        if sum(not peer.known for peer in self._peers.values()) >= MOST_STRANGERS:
            connection.close()
            return
        peer = Peer(connection, secrets.token_hex(16))
        peer.outbox += _line({"nonce": peer.nonce})
        self._add(peer)

    def _hear(self, number: int) -> None:
        peer = self._peers.get(number)
        if peer is None:
            return
        try:
            data = peer.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        peer.heard = time.monotonic()
        peer.inbox += data
        try:
            self._take_lines(number, peer)
        except (ValueError, RecursionError):  # no JSON, or too much of it
            data = b""
        if not data:
            self._forget(number)

    def _take_lines(self, number: int, peer: Peer) -> None:
        while (end := peer.inbox.find(b"\n")) >= 0:
            line = bytes(peer.inbox[:end])
            del peer.inbox[: end + 1]
            if line and len(line) <= _longest(peer):
                self._take(number, peer, _parsed(line))
            elif line:
                raise ValueError("too long")
        if len(peer.inbox) > _longest(peer):
            raise ValueError("too long")

    def _take(self, number: int, peer: Peer, message: Message) -> None:
        if not peer.known:
            if not self._is_proof("join", peer.nonce, message):
                raise ValueError("a stranger")
            peer.known = True
            peer.outbox += _line({"proof": self._proof("lead", message.get("nonce"))})
        self._news.put((number, message))

    def _look_after(self, number: int) -> None:
        peer = self._peers[number]
        if peer.known and time.monotonic() - self._pinged >= PING and self._deadline is None:
            with self._lock:
                peer.outbox += b"\n"
        if peer.closing or self._is_silent(peer) or not self._flush(peer):
            self._forget(number)
            return
        if self._deadline is not None and not peer.outbox:
            with suppress(OSError):
                peer.socket.shutdown(socket.SHUT_WR)  # whoever has heard it all closes in his turn
        waiting = selectors.EVENT_WRITE if peer.outbox else 0
        self._selector.modify(peer.socket, selectors.EVENT_READ | waiting, number)

    def _is_silent(self, peer: Peer) -> bool:
        now = time.monotonic()
        return now - peer.heard > self._silence if peer.known else now - peer.since > INTRODUCTION

    def _flush(self, peer: Peer) -> bool:
        with self._lock:
            try:
                if peer.outbox:
                    del peer.outbox[: peer.socket.send(peer.outbox)]
            except BlockingIOError:
                pass
            except OSError:
                return self._deadline is not None  # we have closed our side ourselves
            return len(peer.outbox) <= MOST_UNSENT

    def _forget(self, number: int) -> None:
        with self._lock:
            peer = self._peers.pop(number)
        self._selector.unregister(peer.socket)
        peer.socket.close()
        if peer.known:
            self.gone.set()
            self._news.put((number, None))

    # proofs

    def _proof(self, purpose: str, nonce: object) -> str:
        return hmac.digest(self._token.encode(), f"{purpose} {nonce}".encode(), "sha256").hex()

    def _is_proof(self, purpose: str, nonce: str, message: Message) -> bool:
        """The purpose is part of it: a proof cannot be thrown back at who gave it."""
        return hmac.compare_digest(str(message.get("proof")).encode(), self._proof(purpose, nonce).encode())


def _line(message: Message) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _parsed(line: bytes) -> Message:
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError("not an object")
    return message


def _longest(peer: Peer) -> int:
    return LONGEST if peer.known else LONGEST_OF_A_STRANGER


def _read_line(connection: socket.socket, data: bytes) -> tuple[Message, bytes]:
    """One that is not a ping, and what came after it."""
    end = time.monotonic() + INTRODUCTION
    while True:
        line, found, rest = data.partition(b"\n")
        if found and line:
            try:
                return _parsed(line), rest
            except (ValueError, RecursionError) as e:
                raise Stranger("that is no supervisor") from e
        data = rest if found else data
        if found:
            continue
        more = connection.recv(4096)
        data += more
        if not more or len(data) > LONGEST_OF_A_STRANGER or time.monotonic() > end:
            raise Stranger("it says nothing that a supervisor would")
