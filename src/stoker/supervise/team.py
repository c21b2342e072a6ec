"""The workers of several nodes as one crew, as the leader sees them."""

from dataclasses import asdict

from stoker.supervise.crew import LOST, Crew, Death
from stoker.supervise.members import Members, Node
from stoker.supervise.wire import Message
from stoker.supervise.workers import Launch

Seats = dict[int, tuple[Node, int]]
"""Peer -> the node, and the lowest of its ranks."""


class Team(Crew):
    """Ours are started here already; the others are told to start theirs."""

    def __init__(self, members: Members, ours: Crew, seats: Seats, launch: Launch) -> None:
        self.world = launch.world
        self._members, self._ours, self._seats = members, ours, seats
        self._attempt = launch.attempt
        self._ended: dict[int, int] = {}
        self._deaths: dict[int, Death] = {}
        self._leaver: Node | None = None
        for group, (peer, (_, first)) in enumerate(seats.items(), start=1):
            told = asdict(launch) | {"first": first, "group": group}
            members.tell(peer, {"kind": "start", "launch": told})

    def poll(self) -> dict[int, int]:
        for peer, message in self._members.turn():
            if peer in self._seats:
                self._hear(peer, message)
        self._ended |= {rank: code for rank, code in self._ours.poll().items() if rank not in self._ended}
        return self._ended

    def death(self, rank: int) -> Death:
        return self._deaths[rank] if rank in self._deaths else self._ours.death(rank)

    @property
    def change(self) -> str | None:
        if self._leaver:
            return f"{self._leaver} leaves"
        here, nodes, seated = self._members.here(), self._members.nodes, 1 + len(self._seats)
        if seated > nodes.most > self._members.me.node:  # a leader that has to go is told so by the platform
            return f"the run is scaled to {nodes} node{'s' * (nodes != '1')}"
        fresh = [node for peer, node in here.items() if peer not in self._seats]
        if fresh and seated < nodes.most and 1 + len(here) >= nodes.least:
            return f"{fresh[0]} has come"
        return None

    @property
    def leaving(self) -> bool:
        return self._leaver is not None

    def terminate(self) -> None:
        self._ours.terminate()
        self._tell_all("terminate")

    def kill(self) -> None:
        self._ours.kill()
        self._tell_all("kill")

    def close(self) -> None:
        self._ours.close()

    def _tell_all(self, kind: str) -> None:
        for peer in self._seats:
            self._members.tell(peer, {"kind": kind})

    def _hear(self, peer: int, message: Message | None) -> None:
        node, first = self._seats[peer]
        ranks = range(first, first + node.workers)
        if message is None:
            for rank in ranks:
                if rank not in self._ended:
                    self._ended[rank] = LOST
                    self._deaths[rank] = Death(rank=rank, code=None, signal=None, line="", said="", lost=str(node))
            return
        try:
            if message["kind"] == "leaving":
                self._leaver = node
            if message["kind"] != "ended" or message["attempt"] != self._attempt:
                return
            rank, code, death = int(message["rank"]), int(message["code"]), Death(**message["death"])
            if rank in ranks and rank not in self._ended:
                self._ended[rank] = code
                self._deaths[rank] = death
        except (KeyError, TypeError, ValueError):
            self._members.dismiss(peer)
