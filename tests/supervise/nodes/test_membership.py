"""How nodes join, leave and are replaced, and how a leader notices that it no longer leads."""

import json
import stat
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import pytest

from stoker.rundir import RunDir, write_json
from stoker.rundir.events import Event, Note
from stoker.spec.on import Nodes
from stoker.supervise.nodes.connections import PING_INTERVAL_S, Message, PeerConnections
from stoker.supervise.nodes.membership import LeadershipLost, Membership, Timeouts, find_leader, read_token
from stoker.supervise.nodes.messages import NodeLeaving, NodeNote, encode
from stoker.supervise.workers.group import KILL_AFTER_S
from tests.supervise.nodes.sample_node import sample_node
from tests.waiting import until

Lead = Callable[..., Membership]
Join = Callable[..., tuple[PeerConnections, int]]


@pytest.fixture
def recorded() -> list[Event]:
    """The events that the leader has added to the run."""
    return []


@pytest.fixture
def lead(run: RunDir, recorded: list[Event]) -> Iterator[Lead]:
    opened: list[Membership] = []

    def record(event: Event, *, rank: int | None = None) -> None:  # noqa: ARG001 (the signature of a Recorder)
        recorded.append(event)

    def make() -> Membership:
        opened.append(Membership(run, sample_node(0), 0, nodes=Nodes("9"), timeouts=Timeouts(), record=record))
        return opened[-1]

    yield make
    for membership in opened:
        membership.close(None)


@pytest.fixture
def join(run: RunDir) -> Iterator[Join]:
    """join(1): node 1 connects to the leader. Returns its connections, and the leader's number there."""
    opened: list[PeerConnections] = []

    def make(index: int, /, **wrong: Any) -> tuple[PeerConnections, int]:
        leader, token = find_leader(run), read_token(run)
        assert leader is not None
        assert token is not None
        opened.append(PeerConnections(token=token, timeout_s=30.0))
        return opened[-1], opened[-1].connect(leader.address, leader.port, asdict(sample_node(index)) | wrong)

    yield make
    for end in opened:
        end.close()


def followers(membership: Membership) -> list[int]:
    membership.poll()
    return [node.index for node in membership.followers().values()]


def test_only_this_user_can_read_the_token_and_the_next_leader_keeps_it(run: RunDir, lead: Lead) -> None:
    first = lead()
    token = read_token(run)
    file = run.path / ".members" / "token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert token is not None
    assert len(token) == 64
    assert token not in (run.path / ".members" / "leader.json").read_text()
    first.close(None)
    assert find_leader(run) is not None, "another node may look for it"
    lead().close(0)
    assert read_token(run) == token
    assert find_leader(run) is None


def test_nodes_join_leave_and_are_replaced(lead: Lead, join: Join) -> None:
    membership = lead()
    second, leader = join(2)
    join(1)
    until(lambda: followers(membership) == [1, 2])
    second.send(leader, encode(NodeLeaving()))
    until(lambda: followers(membership) == [1])
    second.close()
    (before,) = membership.followers()
    join(1)
    until(lambda: followers(membership) == [1] and before not in membership.followers())


@pytest.mark.parametrize(
    "wrong", [{"index": 0}, {"index": -1}, {"index": "1"}, {"index": True}, {"workers": 0}, {"pod": 7}]
)
def test_a_peer_that_knows_the_token_and_is_not_a_valid_node_is_rejected(
    lead: Lead, join: Join, wrong: dict[str, Any]
) -> None:
    membership = lead()
    follower, leader = join(1, **wrong)
    messages: list[tuple[int, Message | None]] = []
    until(lambda: followers(membership) or messages.extend(follower.receive()) or messages)
    assert messages == [(leader, None)]


@pytest.mark.parametrize(
    "message", [{"text": "no kind"}, {"kind": "worker ended", "rank": "many"}, {"kind": "note"}, {"kind": 7}]
)
def test_a_follower_that_sends_an_invalid_message_is_rejected(lead: Lead, join: Join, message: Message) -> None:
    membership = lead()
    follower, leader = join(1)
    until(lambda: followers(membership) == [1])
    follower.send(leader, message)
    until(lambda: followers(membership) == [])


def test_a_message_of_an_unknown_kind_is_ignored(lead: Lead, join: Join, recorded: list[Event]) -> None:
    membership = lead()
    follower, leader = join(1)
    follower.send(leader, {"kind": "of another version"})
    follower.send(leader, encode(NodeNote(text="the disk is full")))
    until(lambda: followers(membership) == [1] and Note(text="the disk is full") in recorded)


def test_a_leader_that_was_replaced_stops_leading(run: RunDir, lead: Lead) -> None:
    membership = lead()
    membership.poll()
    file = run.path / ".members" / "leader.json"
    write_json(file, json.loads(file.read_text()) | {"id": "another"})
    with pytest.raises(LeadershipLost):
        until(lambda: membership.poll())
    membership.close(0)
    assert json.loads(file.read_text())["id"] == "another"


def test_a_leader_stops_leading_when_another_has_led_and_ended(run: RunDir, lead: Lead) -> None:
    membership = lead()
    membership.check_leadership()
    (run.path / ".members" / "leader.json").unlink()
    with pytest.raises(LeadershipLost):
        membership.check_leadership()


def test_a_leader_that_cannot_read_its_record_continues(run: RunDir, lead: Lead) -> None:
    membership = lead()
    (run.path / ".members" / "leader.json").write_text("half")
    membership.check_leadership()


def test_a_leader_record_with_an_impossible_port_is_ignored(run: RunDir, lead: Lead) -> None:
    lead()
    file = run.path / ".members" / "leader.json"
    write_json(file, json.loads(file.read_text()) | {"port": 65536})
    assert find_leader(run) is None


def test_a_leader_waits_until_the_workers_of_a_silent_follower_are_dead() -> None:
    timeouts = Timeouts()
    assert timeouts.follower_silence_s > timeouts.leader_silence_s + KILL_AFTER_S + 2 * PING_INTERVAL_S
