"""Who takes part in the next attempt: this node alone, or the nodes that are there."""

import time
from collections.abc import Callable
from typing import Protocol

from stoker.rundir import Record
from stoker.spec.run import AnySpec
from stoker.supervise.crew import POLL, Crew
from stoker.supervise.members import Members, Patience, facts
from stoker.supervise.rendezvous import listen, needs_server
from stoker.supervise.signals import Signals
from stoker.supervise.team import Seats, Team
from stoker.supervise.workers import LOOPBACK, Hear, Job, Launch, alone

UNSAID = 3.0  # seconds of waiting that need no word
REMINDER = 60.0  # seconds between two words about it

Note = Callable[..., None]


class Muster(Protocol):
    def gather(self, signals: Signals) -> bool:
        """Wait until an attempt may begin. False when we are asked to stop before."""

    @property
    def world(self) -> int:
        """Workers of the attempt that may begin."""

    def facts(self) -> Record:
        """What the event says of it."""

    def start(self, spec: AnySpec, *, attempt: int, restart: int, hear: Hear | None) -> Crew:
        """`hear` is given the lines that the worker of rank 0 prints."""

    def reassure(self) -> None:
        """A look before the run's records are changed: raises Deposed when that is another's affair now."""


class Alone:
    def __init__(self, job: Job, *, note: Note) -> None:
        self._job, self._note = job, note
        self.world = job.workers

    def gather(self, signals: Signals) -> bool:
        return not signals.stopping

    def facts(self) -> Record:
        return {}

    def start(self, spec: AnySpec, *, attempt: int, restart: int, hear: Hear | None) -> Crew:
        with listen(LOOPBACK) as listener:
            launch = alone(
                attempt=attempt,
                restart=restart,
                workers=self._job.workers,
                port=listener.getsockname()[1],
                served=needs_server(spec),
            )
            return self._job.start(
                spec, launch, note=lambda text: self._note("note", text=text), hear=hear, listener=listener
            )

    def reassure(self) -> None:
        """There is no other."""


class Together:
    """Of the leader. Its own ranks come first: so rank 0 and he, who write the run's records, share a machine.

    Storage that is shared over a network need not keep apart what two machines add to one file.
    """

    def __init__(self, job: Job, members: Members, *, patience: Patience, note: Note) -> None:
        self._job, self._members, self._patience, self._note = job, members, patience, note
        self._seats: Seats = {}
        self.world = 0

    def gather(self, signals: Signals) -> bool:
        began = told = time.monotonic()
        while not signals.stopping:
            self._members.turn()
            if self._enough():
                self._seat()
                return True
            now = time.monotonic()
            if now - told > (UNSAID if told == began else REMINDER):
                told = now
                self._tell_who_is_missing()
            time.sleep(POLL)
        return False

    def facts(self) -> Record:
        return {"nodes": facts([(self._members.me, 0), *self._seats.values()])}

    def start(self, spec: AnySpec, *, attempt: int, restart: int, hear: Hear | None) -> Crew:
        address = self._members.me.address if self._seats else LOOPBACK
        with listen(address) as listener:
            launch = Launch(
                attempt=attempt,
                restart=restart,
                world=self.world,
                first=0,
                group=0,
                groups=1 + len(self._seats),
                address=address,
                port=listener.getsockname()[1],
                served=needs_server(spec),
            )
            ours = self._job.start(
                spec, launch, note=lambda text: self._note("note", text=text), hear=hear, listener=listener
            )
        return Team(self._members, ours, self._seats, launch)

    def reassure(self) -> None:
        self._members.reassure()

    def _enough(self) -> bool:
        there, nodes = 1 + len(self._members.here()), self._members.nodes
        ready = max(self._members.changed + self._patience.settle, self._members.lost + self._patience.replacement)
        return there >= nodes.most or (there >= nodes.least and time.monotonic() >= ready)

    def _seat(self) -> None:
        self._seats, self.world = {}, self._job.workers
        for peer, node in list(self._members.here().items())[: self._members.nodes.most - 1]:
            self._seats[peer] = (node, self.world)
            self.world += node.workers

    def _tell_who_is_missing(self) -> None:
        here = sorted([self._members.me.node, *(node.node for node in self._members.here().values())])
        nodes = self._members.nodes
        missing = [node for node in range(nodes.most) if node not in here]
        self._note("waiting", here=here, missing=missing, least=nodes.least, most=nodes.most)
