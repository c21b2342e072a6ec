"""Which nodes take part in a run.

    .members/leader.json  token  nodes

The node that holds the run's lock leads: it writes where it listens, and the others come to it. All that they know of
each other beforehand is the run directory. The token in it is what a node must know to be let in.
"""

import errno
import os
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from stoker.rundir import RunDir, look_anew, write_json
from stoker.rundir.files import read_regular
from stoker.rundir.records import RECORD_BYTES, typed
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.on import Nodes
from stoker.supervise.crew import MERCY
from stoker.supervise.wanted import wanted
from stoker.supervise.wire import Message, Wire

TOKEN_FILE = "token"
MARGIN = 3.0  # seconds: two pings, and the time to see and to do it
REASSURANCE = 2.0  # seconds between two looks whether we still lead


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """In seconds."""

    settle: float = 10.0
    """After a node has come, for others that come with it."""
    replacement: float = 30.0
    """After a node was lost, for another in its place: then the run goes on with fewer."""
    silence: float = 10.0
    """After which a follower gives up its leader."""
    head_start: float = 3.0
    """Of node 0: where it can, it leads, and has the worker of rank 0."""
    forlorn: float = 600.0
    """Without a leader that can be reached, a node gives up: elsewhere it may be better connected."""

    @property
    def silence_of_a_follower(self) -> float:
        """Longer: when both lose sight of each other, its workers are dead before others take their place."""
        return self.silence + MERCY + MARGIN


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One supervisor's place: a pod, or a host."""

    node: int
    """Its index, which a replacement has too."""
    address: str
    workers: int
    host: str
    pod: str = ""
    machine: str = ""
    """That the pod runs on."""

    def __str__(self) -> str:
        return f"node {self.node} ({f'pod {self.pod}' if self.pod else self.host})"

    @classmethod
    def told(cls, message: Message) -> "Node":
        """ValueError when it is none."""
        words = {name: message.get(name) for name in ("address", "host", "pod", "machine")}
        numbers = {name: message.get(name) for name in ("node", "workers")}
        if not all(isinstance(word, str) for word in words.values()):
            raise ValueError("not a node")
        if not all(type(number) is int and number >= 0 for number in numbers.values()) or not numbers["workers"]:
            raise ValueError("not a node")
        return cls(**words, **numbers)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True, slots=True)
class Leader:
    """Where the others find it."""

    id: str
    """Of this leadership: the same node may lead again."""
    node: int
    address: str
    port: int
    host: str
    pod: str


class Deposed(Exception):
    """Another node leads, or has led since: the lock was lost with the storage that keeps it."""


def find_leader(run: RunDir) -> Leader | None:
    folder = run.path / contract.MEMBERS_DIR
    try:
        look_anew(folder)
        return typed(Leader, read_regular(folder / contract.LEADER_FILE, max_bytes=RECORD_BYTES))
    except (OSError, ValueError):
        return None


def read_token(run: RunDir) -> str | None:
    with suppress(OSError, ValueError):
        return read_regular(run.path / contract.MEMBERS_DIR / TOKEN_FILE, max_bytes=RECORD_BYTES).decode() or None
    return None


class Members:
    """The leader's book of nodes, kept while it holds the run's lock."""

    def __init__(
        self, run: RunDir, me: Node, port: int | None, *, nodes: Nodes, patience: Patience, note: Callable[..., None]
    ) -> None:
        """Without a port nobody can come."""
        self.me, self._run, self._port, self._note = me, run, port, note
        self.nodes = nodes
        """How many there are to be."""
        self._nodes: dict[int, Node] = {}
        self._leaving: set[int] = set()
        self._dismissed: set[int] = set()
        self.changed = time.monotonic()
        """When a node came last."""
        if now := wanted(run):
            self._scale(now, was=_last_told(run, nodes))
        before = find_leader(run)
        self.lost = time.monotonic() if before and before.node < self.nodes.most else float("-inf")
        """When one was lost last, the leader before us among them, that another may come for."""
        self._wire = Wire(token=_make_token(run), silence=patience.silence_of_a_follower)
        heard_at = self._listen() if self.nodes.most > 1 else 0
        self._leader = Leader(
            id=secrets.token_hex(8), node=me.node, address=me.address, port=heard_at, host=me.host, pod=me.pod
        )
        write_json(run.path / contract.MEMBERS_DIR / contract.LEADER_FILE, asdict(self._leader))
        self._reassured = time.monotonic()

    def turn(self) -> list[tuple[int, Message | None]]:
        """See who came, went or said something. What members said, and None for one that is gone."""
        if time.monotonic() - self._reassured >= REASSURANCE:
            self.reassure()
        said: list[tuple[int, Message | None]] = []
        for peer, message in self._wire.news():
            if message is None:
                self._dismissed.discard(peer)
            if peer not in self._nodes:
                if message is not None and peer not in self._dismissed:
                    self._welcome(peer, message)
            elif message is None:
                said.append((peer, None))
                self._part_with(peer)
            elif message.get("kind") == "note":
                self._note("note", text=str(message.get("text")))
            else:
                said.append((peer, message))
                if message.get("kind") == "leaving":
                    self._leaving.add(peer)
        return said

    def here(self) -> dict[int, Node]:
        """Those besides us that stay, in the order of their indices. A run that is scaled down loses its last."""
        going = self._leaving | self._dismissed
        staying = {
            peer: node for peer, node in self._nodes.items() if peer not in going and node.node < self.nodes.most
        }
        return dict(sorted(staying.items(), key=lambda item: item[1].node))

    def tell(self, peer: int, message: Message) -> None:
        self._wire.send(peer, message)

    def dismiss(self, peer: int) -> None:
        """One that speaks nonsense, or whose place is taken."""
        self._dismissed.add(peer)
        self._wire.drop(peer)

    def close(self, code: int | None) -> None:
        """The run is over with a code; or we go, and another may lead."""
        if code is not None and not self._is_deposed():
            for peer in self._nodes:
                self.tell(peer, {"kind": "over", "code": code})
            (self._run.path / contract.MEMBERS_DIR / contract.LEADER_FILE).unlink(missing_ok=True)
        self._wire.stop()

    def reassure(self) -> None:
        """Raises Deposed when we lead no longer. Sees whether the run is scaled."""
        self._reassured = time.monotonic()
        if self._is_deposed():
            raise Deposed
        if (now := wanted(self._run)) and now != self.nodes:
            self._scale(now, was=self.nodes)
            self._open()

    def _is_deposed(self) -> bool:
        """Another has written that he leads, or has, and removed it at his end. What cannot be read tells nothing."""
        if leader := find_leader(self._run):
            return leader.id != self._leader.id
        try:
            (self._run.path / contract.MEMBERS_DIR / contract.LEADER_FILE).stat()
        except OSError as e:
            return e.errno == errno.ENOENT
        return False

    def _scale(self, nodes: Nodes, *, was: str) -> None:
        self.nodes = nodes
        if nodes != was:
            self._note("scaled", nodes=nodes, was=was)

    def _open(self) -> None:
        """To others, of whom there were none: one node alone does not listen."""
        if self._leader.port or self.nodes.most == 1:
            return
        try:
            self._leader = replace(self._leader, port=self._listen())
        except UserError as e:  # training goes on, alone as before
            self._note("note", text=f"no other node can come: {e}")
            return
        write_json(self._run.path / contract.MEMBERS_DIR / contract.LEADER_FILE, asdict(self._leader))

    def _listen(self) -> int:
        if self._port is None:
            return 0
        try:
            return self._wire.listen(self.me.address, self._port)
        except OSError as e:
            raise UserError(
                f"cannot listen on {self.me.address}:{self._port}: {e.strerror or e}",
                remedy=f"Set {contract.ENV_ADDRESS} to an address of this node and {contract.ENV_PORT} to a free port",
            ) from e

    def _welcome(self, peer: int, message: Message) -> None:
        try:
            node = Node.told(message)
        except ValueError:
            self.dismiss(peer)
            return
        if node.node == self.me.node:  # it may be our replacement; while we live there is no place for it
            self.dismiss(peer)
            return
        for other in [other for other, held in self._nodes.items() if held.node == node.node]:
            self.dismiss(other)  # the pod that it replaces
        self._nodes[peer] = node
        self.changed = time.monotonic()
        self.tell(peer, {"kind": "welcome"})

    def _part_with(self, peer: int) -> None:
        node = self._nodes.pop(peer)
        if node.node < self.nodes.most:
            self.lost = time.monotonic()
        if peer in self._leaving:
            self._leaving.remove(peer)
            self._note("left", **_facts(node))
        else:
            self._note("lost", **_facts(node))


def facts(seats: Sequence[tuple[Node, int]]) -> list[Message]:
    """Which node has which ranks, for the events: each with its first."""
    return [_facts(node) | {"first": first, "workers": node.workers} for node, first in seats]


def _last_told(run: RunDir, nodes: Nodes) -> str:
    """How many nodes the events say that there are to be."""
    return next((str(event.get("nodes")) for event in reversed(run.events()) if event["kind"] == "scaled"), nodes)


def _facts(node: Node) -> Message:
    return {"node": node.node, "host": node.host} | ({"pod": node.pod} if node.pod else {})


def _make_token(run: RunDir) -> str:
    """By the first leader of all; the lock is held. Nobody but this user may read it."""
    folder = run.path / contract.MEMBERS_DIR
    folder.mkdir(exist_ok=True, mode=0o700)
    if token := read_token(run):
        return token
    token, half = secrets.token_hex(32), folder / f".{TOKEN_FILE}"
    half.unlink(missing_ok=True)
    with open(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token)
        os.fsync(file.fileno())
    os.replace(half, folder / TOKEN_FILE)
    return token
