"""How supervisors talk to each other and authenticate: real sockets, in one process."""

import hmac
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from stoker.supervise.nodes.connections import (
    MAX_UNAUTHENTICATED_PEERS,
    AuthenticationFailed,
    Message,
    PeerConnections,
)
from tests.supervise.nodes.sample_node import ADDRESS
from tests.waiting import until

TIMEOUT_S = 30.0  # of a silent peer, where that is not what is tested

Connect = Callable[..., PeerConnections]


@pytest.fixture
def connections() -> Iterator[Connect]:
    opened: list[PeerConnections] = []

    def make(*, token: str = "secret", timeout_s: float = TIMEOUT_S) -> PeerConnections:
        opened.append(PeerConnections(token=token, timeout_s=timeout_s))
        return opened[-1]

    yield make
    for end in opened:
        end.close()


def receive(end: PeerConnections, count: int) -> list[tuple[int, Message | None]]:
    """Waits for so many messages."""
    messages: list[tuple[int, Message | None]] = []
    until(lambda: len(messages.extend(end.receive()) or messages) >= count, seconds=TIMEOUT_S)
    return messages


def call(port: int) -> socket.socket:
    return socket.create_connection((ADDRESS, port), timeout=30)


def authenticate(call: socket.socket, token: str) -> None:
    """By hand, as PeerConnections does."""
    nonce = json.loads(call.recv(4096))["nonce"]
    proof = hmac.digest(token.encode(), f"join {nonce}".encode(), "sha256").hex()
    call.sendall(json.dumps({"proof": proof, "nonce": "n"}).encode() + b"\n")


def is_closed(call: socket.socket) -> bool:
    try:
        while call.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


def test_messages_arrive_in_order_and_a_lost_peer_is_reported_once(connections: Connect) -> None:
    leader, follower = connections(), connections()
    number = follower.connect(ADDRESS, leader.listen(ADDRESS, 0), {"index": 1})
    for n in range(100):
        follower.send(number, {"n": n, "text": "x" * 5000})
    follower.close()
    (peer, hello), *messages, last = receive(leader, 102)
    assert hello is not None
    assert hello["index"] == 1
    assert [message["n"] for _, message in messages if message] == list(range(100))
    assert last == (peer, None)
    assert leader.receive() == []
    leader.send(peer, {"to": "nobody"})


def test_the_last_message_arrives_even_while_the_peer_is_sending(connections: Connect) -> None:
    leader, follower = connections(), connections()
    number = follower.connect(ADDRESS, leader.listen(ADDRESS, 0), {})
    ((peer, _),) = receive(leader, 1)
    for n in range(1000):
        follower.send(number, {"n": n})
    leader.send(peer, {"kind": "run ended"})
    leader.close()
    assert receive(follower, 2) == [(number, {"kind": "run ended"}), (number, None)]


def test_a_wrong_token_is_refused_on_both_sides(connections: Connect) -> None:
    leader = connections()
    port = leader.listen(ADDRESS, 0)
    with pytest.raises(ConnectionError):
        connections(token="guess").connect(ADDRESS, port, {})
    with socket.create_server((ADDRESS, 0)) as impostor:
        received: list[bytes] = []

        def answer() -> None:
            connection, _ = impostor.accept()
            with connection:
                connection.sendall(b'{"nonce": "0"}\n')
                received.append(connection.recv(4096))
                connection.sendall(b'{"proof": "0"}\n')

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(AuthenticationFailed):
            connections().connect(ADDRESS, impostor.getsockname()[1], {"index": 1})
        thread.join()
    assert b"secret" not in received[0]
    assert leader.receive() == []


def test_a_proof_is_valid_for_one_connection(connections: Connect) -> None:
    leader = connections()
    port = leader.listen(ADDRESS, 0)
    with call(port) as first, call(port) as second:
        nonce = json.loads(first.recv(4096))["nonce"]
        proof = hmac.digest(b"secret", f"join {nonce}".encode(), "sha256").hex()
        second.sendall(json.dumps({"proof": proof}).encode() + b"\n")
        assert is_closed(second)
    assert leader.receive() == []


def test_too_many_unauthenticated_peers_do_not_keep_a_node_out_for_long(connections: Connect) -> None:
    leader = connections()
    port = leader.listen(ADDRESS, 0)
    calls = [call(port) for _ in range(MAX_UNAUTHENTICATED_PEERS + 1)]
    assert is_closed(calls[-1])
    for silent in calls:
        assert is_closed(silent)  # it has sent nothing for too long
        silent.close()
    connections().connect(ADDRESS, port, {"index": 1})
    assert len(receive(leader, 1)) == 1


@pytest.mark.parametrize("data", [b"nonsense\n", b"[1, 2]\n", b'{"n":' * 100_000 + b"\n", b"x" * (3 << 20)])
def test_a_peer_that_sends_garbage_is_lost(connections: Connect, data: bytes) -> None:
    leader = connections()
    with call(leader.listen(ADDRESS, 0)) as peer:
        authenticate(peer, "secret")
        until(lambda: receive(leader, 1))
        with suppress(ConnectionError):
            peer.sendall(data)
        assert receive(leader, 1)[0][1] is None


def test_a_peer_that_is_silent_is_lost_and_one_that_pings_is_not(connections: Connect) -> None:
    leader = connections(timeout_s=2.5)
    port = leader.listen(ADDRESS, 0)
    with call(port) as silent:
        authenticate(silent, "secret")
        ((peer, _),) = receive(leader, 1)
        connections().connect(ADDRESS, port, {})
        ((pinging, _),) = receive(leader, 1)
        assert receive(leader, 1) == [(peer, None)]
        assert leader.receive() == []
        assert pinging != peer


def test_a_follower_that_was_frozen_for_too_long_gives_up_its_leader(
    connections: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = connections(), connections(timeout_s=2.0)
    number = follower.connect(ADDRESS, leader.listen(ADDRESS, 0), {})
    select = follower._selector.select
    monkeypatch.setattr(follower._selector, "select", lambda timeout: (time.sleep(2.5), select(timeout))[1])
    assert receive(follower, 1) == [(number, None)]
    assert follower.peer_lost.is_set()


def test_a_leader_that_was_frozen_loses_no_peer_because_of_it(
    connections: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = connections(timeout_s=4.0)
    with call(leader.listen(ADDRESS, 0)) as silent:
        authenticate(silent, "secret")
        receive(leader, 1)
        select, selects = leader._selector.select, []

        def sleep_once(timeout: float) -> Any:
            selects.append(timeout)
            time.sleep(5.0 if len(selects) == 1 else 0)
            return select(timeout)

        monkeypatch.setattr(leader._selector, "select", sleep_once)
        until(lambda: len(selects) >= 3)
        assert leader.receive() == []
