"""How nodes find and trust each other: real sockets, in one process."""

import hmac
import json
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import pytest

from stoker.rundir import RunDir, write_json
from stoker.spec.on import Nodes
from stoker.supervise.crew import MERCY
from stoker.supervise.members import Deposed, Members, Patience, find_leader, read_token
from stoker.supervise.wire import MOST_STRANGERS, PING, Message, Stranger, Wire
from tests.supervise.a_node import HOME, a_node
from tests.waiting import until

SILENCE = 30.0  # seconds: news that take so long may come of it alone


@pytest.fixture
def wire() -> Iterator[Callable[..., Wire]]:
    made: list[Wire] = []

    def make(*, token: str = "secret", silence: float = SILENCE) -> Wire:
        made.append(Wire(token=token, silence=silence))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def lead(run: RunDir) -> Iterator[Callable[..., Members]]:
    made: list[Members] = []

    def make(**patience: float) -> Members:
        made.append(
            Members(run, a_node(0), 0, nodes=Nodes("9"), patience=Patience(**patience), note=lambda *_, **__: None)
        )
        return made[-1]

    yield make
    for one in made:
        one.close(None)


def heard(wire: Wire, number: int) -> list[tuple[int, Message | None]]:
    """So many news."""
    found: list[tuple[int, Message | None]] = []
    until(lambda: len(found.extend(wire.news()) or found) >= number, seconds=SILENCE)
    return found


def join(run: RunDir, node: int, wire: Callable[..., Wire]) -> tuple[Wire, int]:
    leader, token = find_leader(run), read_token(run)
    assert leader is not None
    follower = wire(token=token)
    return follower, follower.connect(leader.address, leader.port, asdict(a_node(node)))


def here(members: Members) -> list[int]:
    members.turn()
    return [node.node for node in members.here().values()]


def call(port: int) -> socket.socket:
    return socket.create_connection((HOME, port), timeout=30)


def introduce(call: socket.socket, token: str) -> None:
    """By hand, as the wire does."""
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


def test_what_is_said_arrives_in_order_and_an_end_is_told_once(wire: Callable[..., Wire]) -> None:
    leader, follower = wire(), wire()
    number = follower.connect(HOME, leader.listen(HOME, 0), {"node": 1})
    for n in range(100):
        follower.send(number, {"n": n, "text": "x" * 5000})
    follower.stop()
    (peer, hello), *said, last = heard(leader, 102)
    assert hello is not None
    assert hello["node"] == 1
    assert [message["n"] for _, message in said if message] == list(range(100))
    assert last == (peer, None)
    assert leader.news() == []
    leader.send(peer, {"to": "nobody"})


def test_last_words_arrive_even_when_the_other_is_still_talking(wire: Callable[..., Wire]) -> None:
    leader, follower = wire(), wire()
    number = follower.connect(HOME, leader.listen(HOME, 0), {})
    ((peer, _),) = heard(leader, 1)
    for n in range(1000):
        follower.send(number, {"n": n})
    leader.send(peer, {"kind": "over"})
    leader.stop()
    assert heard(follower, 2) == [(number, {"kind": "over"}), (number, None)]


def test_a_wrong_token_is_turned_away_on_both_sides(wire: Callable[..., Wire]) -> None:
    leader = wire()
    port = leader.listen(HOME, 0)
    with pytest.raises(ConnectionError):
        wire(token="guess").connect(HOME, port, {})
    with socket.create_server((HOME, 0)) as impostor:
        said: list[bytes] = []

        def answer() -> None:
            connection, _ = impostor.accept()
            with connection:
                connection.sendall(b'{"nonce": "0"}\n')
                said.append(connection.recv(4096))
                connection.sendall(b'{"proof": "0"}\n')

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(Stranger):
            wire().connect(HOME, impostor.getsockname()[1], {"node": 1})
        thread.join()
    assert b"secret" not in said[0]
    assert leader.news() == []


def test_a_proof_is_good_for_one_call(wire: Callable[..., Wire]) -> None:
    leader = wire()
    port = leader.listen(HOME, 0)
    with call(port) as first, call(port) as second:
        nonce = json.loads(first.recv(4096))["nonce"]
        proof = hmac.digest(b"secret", f"join {nonce}".encode(), "sha256").hex()
        second.sendall(json.dumps({"proof": proof}).encode() + b"\n")
        assert is_closed(second)
    assert leader.news() == []


def test_too_many_strangers_do_not_keep_a_node_out_for_long(wire: Callable[..., Wire]) -> None:
    leader = wire()
    port = leader.listen(HOME, 0)
    calls = [call(port) for _ in range(MOST_STRANGERS + 1)]
    assert is_closed(calls[-1])
    for one in calls:
        assert is_closed(one)  # it has said nothing for too long
        one.close()
    wire().connect(HOME, port, {"node": 1})
    assert len(heard(leader, 1)) == 1


@pytest.mark.parametrize("words", [b"nonsense\n", b"[1, 2]\n", b'{"n":' * 100_000 + b"\n", b"x" * (3 << 20)])
def test_a_node_that_speaks_nonsense_is_taken_for_gone(wire: Callable[..., Wire], words: bytes) -> None:
    leader = wire()
    with call(leader.listen(HOME, 0)) as peer:
        introduce(peer, "secret")
        until(lambda: heard(leader, 1))
        with suppress(ConnectionError):
            peer.sendall(words)
        assert heard(leader, 1)[0][1] is None


def test_a_node_that_is_silent_is_taken_for_gone_and_one_that_pings_is_not(wire: Callable[..., Wire]) -> None:
    leader = wire(silence=2.5)
    port = leader.listen(HOME, 0)
    with call(port) as silent:
        introduce(silent, "secret")
        ((peer, _),) = heard(leader, 1)
        wire().connect(HOME, port, {})
        ((pinging, _),) = heard(leader, 1)
        assert heard(leader, 1) == [(peer, None)]
        assert leader.news() == []
        assert pinging != peer


def test_the_token_is_for_this_user_alone_and_the_next_leader_keeps_it(
    run: RunDir, lead: Callable[..., Members]
) -> None:
    first = lead()
    token = read_token(run)
    file = run.path / ".members" / "token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert token is not None
    assert len(token) == 64
    assert token not in (run.path / ".members" / "leader.json").read_text()
    first.close(None)
    assert find_leader(run) is not None, "another may come to look for it"
    lead().close(0)
    assert read_token(run) == token
    assert find_leader(run) is None


def test_nodes_come_leave_and_are_replaced(
    run: RunDir, lead: Callable[..., Members], wire: Callable[..., Wire]
) -> None:
    members = lead()
    second, number = join(run, 2, wire)
    join(run, 1, wire)
    until(lambda: here(members) == [1, 2])
    second.send(number, {"kind": "leaving"})
    until(lambda: here(members) == [1])
    second.stop()
    (before,) = members.here()
    join(run, 1, wire)
    until(lambda: here(members) == [1] and before not in members.here())


@pytest.mark.parametrize(
    "wrong", [{"node": 0}, {"node": -1}, {"node": "1"}, {"node": True}, {"workers": 0}, {"pod": 7}]
)
def test_one_that_knows_the_token_and_is_no_node_is_turned_away(
    run: RunDir, lead: Callable[..., Members], wire: Callable[..., Wire], wrong: dict[str, Any]
) -> None:
    members = lead()
    leader = find_leader(run)
    assert leader is not None
    follower = wire(token=read_token(run))
    number = follower.connect(HOME, leader.port, asdict(a_node(1)) | wrong)
    found: list[tuple[int, Message | None]] = []
    until(lambda: here(members) or found.extend(follower.news()) or found)
    assert found == [(number, None)]


def test_a_leader_that_another_has_taken_over_from_stands_down(run: RunDir, lead: Callable[..., Members]) -> None:
    members = lead()
    members.turn()
    file = run.path / ".members" / "leader.json"
    write_json(file, json.loads(file.read_text()) | {"id": "another"})
    with pytest.raises(Deposed):
        until(lambda: members.turn())
    members.close(0)
    assert json.loads(file.read_text())["id"] == "another"


def test_a_leader_after_whom_another_has_led_and_ended_stands_down(run: RunDir, lead: Callable[..., Members]) -> None:
    members = lead()
    members.reassure()
    (run.path / ".members" / "leader.json").unlink()
    with pytest.raises(Deposed):
        members.reassure()


def test_a_leader_that_cannot_read_who_leads_goes_on(run: RunDir, lead: Callable[..., Members]) -> None:
    members = lead()
    (run.path / ".members" / "leader.json").write_text("half")
    members.reassure()


def test_a_follower_that_was_frozen_too_long_gives_up_its_leader(
    wire: Callable[..., Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = wire(), wire(silence=2.0)
    number = follower.connect(HOME, leader.listen(HOME, 0), {})
    look = follower._selector.select
    monkeypatch.setattr(follower._selector, "select", lambda timeout: (time.sleep(2.5), look(timeout))[1])
    assert heard(follower, 1) == [(number, None)]
    assert follower.gone.is_set()


def test_a_leader_that_was_frozen_blames_nobody(wire: Callable[..., Wire], monkeypatch: pytest.MonkeyPatch) -> None:
    leader = wire(silence=4.0)
    with call(leader.listen(HOME, 0)) as silent:
        introduce(silent, "secret")
        heard(leader, 1)
        look, looks = leader._selector.select, []

        def nap_once(timeout: float) -> Any:
            looks.append(timeout)
            time.sleep(5.0 if len(looks) == 1 else 0)
            return look(timeout)

        monkeypatch.setattr(leader._selector, "select", nap_once)
        until(lambda: len(looks) >= 3)
        assert leader.news() == []


def test_a_leader_waits_until_the_workers_of_a_silent_follower_are_dead() -> None:
    patience = Patience()
    assert patience.silence_of_a_follower > patience.silence + MERCY + 2 * PING
