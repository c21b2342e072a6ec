"""TCP connections between supervisors: lines of JSON, authenticated by the run's token, with pings.

A thread of its own sends, receives and pings, so that a slow disk never makes a node look dead. A peer is authenticated
when it has proven that it knows the run's token; the token itself is never sent.
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

PING_INTERVAL_S = 1.0
HANDSHAKE_TIMEOUT_S = 5.0
FLUSH_TIMEOUT_S = 3.0  # for the last messages to be sent when the connections are closed
MAX_UNAUTHENTICATED_PEERS = 256  # at a time; nodes that join count until they are authenticated
MAX_HANDSHAKE_LINE_BYTES = 4096
MAX_LINE_BYTES = 1 << 20
MAX_UNSENT_BYTES = 4 << 20  # for a peer that does not read


class AuthenticationFailed(ConnectionError):
    """The other end does not know the token."""


@dataclass(slots=True)
class Peer:
    socket: socket.socket
    nonce: str
    authenticated: bool = False
    inbox: bytearray = field(default_factory=bytearray)
    outbox: bytearray = field(default_factory=bytearray)
    connected_at: float = field(default_factory=time.monotonic)
    heard_at: float = field(default_factory=time.monotonic)
    closing: bool = False


class PeerConnections:
    """Peers have numbers. A peer that disconnects or sends nothing for `timeout_s` seconds is lost; reported once."""

    def __init__(self, *, token: str, timeout_s: float) -> None:
        self._token, self._timeout_s = token, timeout_s
        self.peer_lost = threading.Event()
        """Set when an authenticated peer is lost, for threads that cannot wait for `receive`."""
        self._peers: dict[int, Peer] = {}
        self._last_number = 0
        self._received: queue.SimpleQueue[tuple[int, Message | None]] = queue.SimpleQueue()
        self._lock = threading.Lock()  # for the peers and their outboxes
        self._selector = selectors.DefaultSelector()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ)
        self._listener: socket.socket | None = None
        self._deadline: float | None = None  # set when the connections are being closed
        self._pinged_at = 0.0
        self._failed = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="peer-connections")

    def listen(self, address: str, port: int) -> int:
        """Returns the port; the system chooses it if it is 0."""
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        self._listener = socket.create_server((address, port), family=family)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread.start()
        number: int = self._listener.getsockname()[1]
        return number

    def connect(self, address: str, port: int, hello: Message) -> int:
        """Connects, and both ends authenticate. Returns the peer's number; raises OSError."""
        connection = socket.create_connection((address, port), timeout=HANDSHAKE_TIMEOUT_S)
        try:
            nonce = secrets.token_hex(16)
            challenge, rest = _read_line(connection, b"")
            proof = self._proof("join", challenge.get("nonce"))
            connection.sendall(_line(hello | {"proof": proof, "nonce": nonce}))
            answer, rest = _read_line(connection, rest)
            if not self._is_proof("lead", nonce, answer):
                raise AuthenticationFailed(f"{address}:{port} is not a supervisor of this run")
        except BaseException:
            connection.close()
            raise
        peer = Peer(connection, "", authenticated=True, inbox=bytearray(rest))
        number = self._add(peer)
        self._thread.start()
        return number

    def send(self, number: int, message: Message) -> None:
        """Thread-safe. Messages to disconnected peers are dropped."""
        with self._lock:
            if peer := self._peers.get(number):
                peer.outbox += _line(message)
        self._wake()

    def disconnect(self, number: int) -> None:
        with self._lock:
            if peer := self._peers.get(number):
                peer.closing = True
        self._wake()

    def receive(self) -> list[tuple[int, Message | None]]:
        """New messages by peer, in order. The first of a peer is its hello; None, the last, means that it is lost."""
        if self._failed:
            raise ConnectionError("the thread that talks to the other nodes has failed")
        messages = []
        with suppress(queue.Empty):
            while True:
                messages.append(self._received.get_nowait())
        return messages

    def close(self) -> None:
        """Sends what is in the outboxes, to peers that still read."""
        if self._thread.is_alive():
            self._deadline = time.monotonic() + FLUSH_TIMEOUT_S
            self._wake()
            self._thread.join()
        for end in (self._wake_receiver, self._wake_sender, self._listener):
            if end:
                end.close()
        self._selector.close()

    def _wake(self) -> None:
        with suppress(OSError):  # the buffer is full: the thread wakes up anyway
            self._wake_sender.send(b"!")

    def _add(self, peer: Peer) -> int:
        peer.socket.setblocking(False)
        peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._last_number += 1
            self._peers[self._last_number] = peer
        self._selector.register(peer.socket, selectors.EVENT_READ, self._last_number)
        return self._last_number

    # Everything below runs in the thread.

    def _run(self) -> None:
        try:
            awake = time.monotonic()
            while self._deadline is None or (self._peers and time.monotonic() < self._deadline):
                for key, _ in self._selector.select(PING_INTERVAL_S / 2):
                    if key.fileobj is self._wake_receiver:
                        self._wake_receiver.recv(4096)
                    elif key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._read(key.data)
                paused, awake = time.monotonic() - awake, time.monotonic()
                if paused > PING_INTERVAL_S and self._listener:  # this process or the machine was suspended
                    self._extend_timeouts(paused - PING_INTERVAL_S)
                elif paused > self._timeout_s:  # the leader may have given this node up: its messages may be outdated
                    break
                for number in list(self._peers):
                    self._maintain(number)
                if time.monotonic() - self._pinged_at >= PING_INTERVAL_S:
                    self._pinged_at = time.monotonic()
            for number in list(self._peers):
                self._remove(number)
        except BaseException:
            self._failed = True
            self.peer_lost.set()
            raise

    def _extend_timeouts(self, seconds: float) -> None:
        for peer in self._peers.values():
            peer.heard_at += seconds
            peer.connected_at += seconds

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it has disconnected already
            return
        if sum(not peer.authenticated for peer in self._peers.values()) >= MAX_UNAUTHENTICATED_PEERS:
            connection.close()
            return
        peer = Peer(connection, secrets.token_hex(16))
        peer.outbox += _line({"nonce": peer.nonce})
        self._add(peer)

    def _read(self, number: int) -> None:
        peer = self._peers.get(number)
        if peer is None:
            return
        try:
            data = peer.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        peer.heard_at = time.monotonic()
        peer.inbox += data
        try:
            self._take_lines(number, peer)
        except (ValueError, RecursionError):  # not JSON, or too deeply nested
            data = b""
        if not data:
            self._remove(number)

    def _take_lines(self, number: int, peer: Peer) -> None:
        while (end := peer.inbox.find(b"\n")) >= 0:
            line = bytes(peer.inbox[:end])
            del peer.inbox[: end + 1]
            if line and len(line) <= _max_line_bytes(peer):
                self._take(number, peer, _parse(line))
            elif line:
                raise ValueError("the line is too long")
        if len(peer.inbox) > _max_line_bytes(peer):
            raise ValueError("the line is too long")

    def _take(self, number: int, peer: Peer, message: Message) -> None:
        if not peer.authenticated:
            if not self._is_proof("join", peer.nonce, message):
                raise ValueError("the proof is wrong")
            peer.authenticated = True
            peer.outbox += _line({"proof": self._proof("lead", message.get("nonce"))})
        self._received.put((number, message))

    def _maintain(self, number: int) -> None:
        """Pings and flushes a peer, and removes it if it is closing or lost."""
        peer = self._peers[number]
        if peer.authenticated and time.monotonic() - self._pinged_at >= PING_INTERVAL_S and self._deadline is None:
            with self._lock:
                peer.outbox += b"\n"
        if peer.closing or self._is_timed_out(peer) or not self._flush(peer):
            self._remove(number)
            return
        if self._deadline is not None and not peer.outbox:
            with suppress(OSError):
                peer.socket.shutdown(socket.SHUT_WR)  # a peer that has read everything closes its end too
        waiting = selectors.EVENT_WRITE if peer.outbox else 0
        self._selector.modify(peer.socket, selectors.EVENT_READ | waiting, number)

    def _is_timed_out(self, peer: Peer) -> bool:
        now = time.monotonic()
        if peer.authenticated:
            return now - peer.heard_at > self._timeout_s
        return now - peer.connected_at > HANDSHAKE_TIMEOUT_S

    def _flush(self, peer: Peer) -> bool:
        """False when the connection is broken, or the peer does not read."""
        with self._lock:
            try:
                if peer.outbox:
                    del peer.outbox[: peer.socket.send(peer.outbox)]
            except BlockingIOError:
                pass
            except OSError:
                return self._deadline is not None  # we have shut down our end ourselves
            return len(peer.outbox) <= MAX_UNSENT_BYTES

    def _remove(self, number: int) -> None:
        with self._lock:
            peer = self._peers.pop(number)
        self._selector.unregister(peer.socket)
        peer.socket.close()
        if peer.authenticated:
            self.peer_lost.set()
            self._received.put((number, None))

    def _proof(self, purpose: str, nonce: object) -> str:
        return hmac.digest(self._token.encode(), f"{purpose} {nonce}".encode(), "sha256").hex()

    def _is_proof(self, purpose: str, nonce: str, message: Message) -> bool:
        """The purpose is part of the proof: a proof cannot be replayed to the peer that sent it."""
        return hmac.compare_digest(str(message.get("proof")).encode(), self._proof(purpose, nonce).encode())


def _line(message: Message) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _parse(line: bytes) -> Message:
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError("not an object")
    return message


def _max_line_bytes(peer: Peer) -> int:
    return MAX_LINE_BYTES if peer.authenticated else MAX_HANDSHAKE_LINE_BYTES


def _read_line(connection: socket.socket, data: bytes) -> tuple[Message, bytes]:
    """The next message that is not a ping, and the bytes after it."""
    end = time.monotonic() + HANDSHAKE_TIMEOUT_S
    while True:
        line, newline, rest = data.partition(b"\n")
        if newline and line:
            try:
                return _parse(line), rest
            except (ValueError, RecursionError) as e:
                raise AuthenticationFailed("the other end is not a supervisor") from e
        data = rest if newline else data
        if newline:
            continue
        more = connection.recv(4096)
        data += more
        if not more or len(data) > MAX_HANDSHAKE_LINE_BYTES or time.monotonic() > end:
            raise AuthenticationFailed("the other end does not answer as a supervisor")
