"""Which nodes take part in a run.

    .members/leader.json  token  nodes

The node that holds the run's lock leads: it writes where it listens, and the others connect to it. All that they share
before that is the run directory. The token in it authenticates nodes to each other.
"""

import errno
import os
import secrets
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any

from pydantic import Field

from stoker.rundir import RunDir, events, refresh_folder, write_json
from stoker.rundir.records import RECORD_BYTES, Count, Workers, typed, typed_fields
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.files import read_regular
from stoker.spec.on import Nodes
from stoker.supervise.nodes.connections import Message, PeerConnections
from stoker.supervise.nodes.messages import (
    Accepted,
    FollowerMessage,
    LeaderMessage,
    NodeLeaving,
    NodeNote,
    RunEnded,
    encode,
    parse_follower_message,
)
from stoker.supervise.recorder import Recorder
from stoker.supervise.scale import requested_nodes
from stoker.supervise.workers.group import KILL_AFTER_S

TOKEN_FILE = "token"
MAX_PORT = 65535
REACTION_TIME_S = 3.0  # two pings, and the time to notice and act
LEADERSHIP_CHECK_S = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeouts:
    settle_s: float = 10.0
    """After a node has joined, for others that start at the same time."""
    replacement_s: float = 30.0
    """After a node was lost, for its replacement; then the run continues with fewer nodes."""
    leader_silence_s: float = 10.0
    """After this silence a leader counts as lost, and its followers look for another."""
    head_start_s: float = 3.0
    """How long other nodes wait before they lead, so that node 0 leads if it can, and has the worker of rank 0."""
    no_leader_s: float = 600.0
    """When a node that reaches no leader gives up: on another machine its network may be better."""

    @property
    def follower_silence_s(self) -> float:
        """Longer than the leader's: if both lose each other, the follower's workers end before they are replaced."""
        return self.leader_silence_s + KILL_AFTER_S + REACTION_TIME_S


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A pod or host with one supervisor. A follower sends it when it connects."""

    index: Count
    """A replacement has the same."""
    address: str
    workers: Annotated[Workers, Field(ge=1)]
    host: str
    pod: str = ""
    machine: str = ""
    """The Kubernetes node of the pod."""

    def __str__(self) -> str:
        return f"node {self.index} ({f'pod {self.pod}' if self.pod else self.host})"

    @classmethod
    def parse(cls, message: Message) -> "Node":
        """Raises ValueError."""
        return typed_fields(cls, {item.name: message.get(item.name) for item in fields(cls)})

    def event_fields(self) -> dict[str, Any]:
        return {"node": self.index, "host": self.host} | ({"pod": self.pod} if self.pod else {})


@dataclass(frozen=True, kw_only=True, slots=True)
class Leader:
    """leader.json: which node leads, and where it listens."""

    id: str
    """Of this leadership: the same node may lead again."""
    node: int
    address: str
    port: Annotated[int, Field(ge=0, le=MAX_PORT)]
    """0 while it does not listen."""
    host: str
    pod: str


class LeadershipLost(Exception):
    """Another node leads, or has led since: the lock was lost with the storage that holds it."""


def find_leader(run: RunDir) -> Leader | None:
    folder = run.path / contract.MEMBERS_DIR
    try:
        refresh_folder(folder)
        return typed(Leader, read_regular(folder / contract.LEADER_FILE, max_bytes=RECORD_BYTES, follow_links=False))
    except (OSError, ValueError):
        return None


def read_token(run: RunDir) -> str | None:
    with suppress(OSError, ValueError):
        file = run.path / contract.MEMBERS_DIR / TOKEN_FILE
        return read_regular(file, max_bytes=RECORD_BYTES, follow_links=False).decode() or None
    return None


class Membership:
    """The leader's list of nodes, while it holds the run's lock. Followers have peer numbers."""

    def __init__(
        self, run: RunDir, me: Node, port: int | None, *, nodes: Nodes, timeouts: Timeouts, record: Recorder
    ) -> None:
        """Without a port no other node can join."""
        self.me, self._run, self._port, self._record = me, run, port, record
        self.nodes = nodes
        """How many nodes the run should have."""
        self._followers: dict[int, Node] = {}
        self._leaving: set[int] = set()
        self._rejected: set[int] = set()
        self.last_joined = time.monotonic()
        if requested := requested_nodes(run):
            self._set_nodes(requested, was=_last_recorded_nodes(run, nodes))
        previous = find_leader(run)
        self.last_lost = time.monotonic() if previous and previous.node < self.nodes.most else float("-inf")
        """When a node was lost that may be replaced; the previous leader counts."""
        self._connections = PeerConnections(token=_create_token(run), timeout_s=timeouts.follower_silence_s)
        try:
            listening_port = self._listen() if self.nodes.most > 1 else 0
        except OSError as e:
            raise self._cannot_listen(e) from e
        self._leader = Leader(
            id=secrets.token_hex(8), node=me.index, address=me.address, port=listening_port, host=me.host, pod=me.pod
        )
        self._write_leader()
        self._leadership_checked = time.monotonic()

    def poll(self) -> list[tuple[int, FollowerMessage | None]]:
        """Accepts and removes nodes. Returns new messages of followers; None for a follower that is lost."""
        if time.monotonic() - self._leadership_checked >= LEADERSHIP_CHECK_S:
            self.check_leadership()
        messages: list[tuple[int, FollowerMessage | None]] = []
        for peer, record in self._connections.receive():
            if peer not in self._followers:
                if record is not None and peer not in self._rejected:
                    self._accept(peer, record)
                continue
            if record is None:
                messages.append((peer, None))
                self._remove(peer)
                continue
            try:
                message = parse_follower_message(record)
            except ValueError:
                self._reject(peer)
                continue
            if isinstance(message, NodeNote):
                self._record(events.Note(text=message.text))
            elif message:
                messages.append((peer, message))
                if isinstance(message, NodeLeaving):
                    self._leaving.add(peer)
        return messages

    def followers(self) -> dict[int, Node]:
        """Those that stay, ordered by index. A run that is scaled down loses the nodes with the highest indices."""
        leaving = self._leaving | self._rejected
        staying = {
            peer: node for peer, node in self._followers.items() if peer not in leaving and node.index < self.nodes.most
        }
        return dict(sorted(staying.items(), key=lambda item: item[1].index))

    def send(self, peer: int, message: LeaderMessage) -> None:
        self._connections.send(peer, encode(message))

    def close(self, code: int | None) -> None:
        """`code`: the exit code of the run, if it has ended; None if this node stops and another may lead."""
        if code is not None and not self._is_leadership_lost():
            for peer in self._followers:
                self.send(peer, RunEnded(code=code))
            (self._run.path / contract.MEMBERS_DIR / contract.LEADER_FILE).unlink(missing_ok=True)
        self._connections.close()

    def check_leadership(self) -> None:
        """Raises LeadershipLost if this node no longer leads. Also checks whether the run was scaled."""
        self._leadership_checked = time.monotonic()
        if self._is_leadership_lost():
            raise LeadershipLost
        if (requested := requested_nodes(self._run)) and requested != self.nodes:
            self._set_nodes(requested, was=self.nodes)
            self._start_listening()

    def _is_leadership_lost(self) -> bool:
        """Another leader wrote its record, or removed it when the run ended. An unreadable file is ignored."""
        if leader := find_leader(self._run):
            return leader.id != self._leader.id
        try:
            (self._run.path / contract.MEMBERS_DIR / contract.LEADER_FILE).stat()
        except OSError as e:
            return e.errno == errno.ENOENT
        return False

    def _set_nodes(self, nodes: Nodes, *, was: str) -> None:
        self.nodes = nodes
        if nodes != was:
            self._record(events.RunScaled(nodes=str(nodes), was=str(was)))

    def _start_listening(self) -> None:
        """When a run of one node is scaled up: a single node does not listen."""
        if self._leader.port or self.nodes.most == 1:
            return
        try:
            self._leader = replace(self._leader, port=self._listen())
        except OSError as e:  # training continues on this node
            self._record(events.Note(text=f"no other node can join: {self._cannot_listen(e)}"))
            return
        self._write_leader()

    def _listen(self) -> int:
        return 0 if self._port is None else self._connections.listen(self.me.address, self._port)

    def _cannot_listen(self, error: OSError) -> UserError:
        return UserError(
            f"cannot listen on {self.me.address}:{self._port}: {error.strerror or error}",
            remedy=f"Set {contract.ENV_ADDRESS} to an address of this node and {contract.ENV_PORT} to a free port",
        )

    def _write_leader(self) -> None:
        write_json(self._run.path / contract.MEMBERS_DIR / contract.LEADER_FILE, asdict(self._leader))

    def _accept(self, peer: int, hello: Message) -> None:
        try:
            node = Node.parse(hello)
        except ValueError:
            self._reject(peer)
            return
        if node.index == self.me.index:  # possibly our replacement; it can join when this process has ended
            self._reject(peer)
            return
        for other in [other for other, follower in self._followers.items() if follower.index == node.index]:
            self._reject(other)  # the pod that the new node replaces
        self._followers[peer] = node
        self.last_joined = time.monotonic()
        self.send(peer, Accepted())

    def _reject(self, peer: int) -> None:
        self._rejected.add(peer)
        self._connections.disconnect(peer)

    def _remove(self, peer: int) -> None:
        node = self._followers.pop(peer)
        if node.index < self.nodes.most:
            self.last_lost = time.monotonic()
        if peer in self._leaving:
            self._leaving.remove(peer)
            self._record(events.NodeLeft(**node.event_fields()))
        else:
            self._record(events.NodeLost(**node.event_fields()))


def _last_recorded_nodes(run: RunDir, nodes: Nodes) -> str:
    """How many nodes the run should have according to its events; `nodes` if it was never scaled."""
    return next((event.nodes for event in reversed(run.events()) if isinstance(event, events.RunScaled)), nodes)


def _create_token(run: RunDir) -> str:
    """Created by the first leader, under the run's lock. Only this user can read it."""
    folder = run.path / contract.MEMBERS_DIR
    folder.mkdir(exist_ok=True, mode=0o700)
    if token := read_token(run):
        return token
    token, temporary = secrets.token_hex(32), folder / f".{TOKEN_FILE}"
    temporary.unlink(missing_ok=True)
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token)
        os.fsync(file.fileno())
    os.replace(temporary, folder / TOKEN_FILE)
    return token
