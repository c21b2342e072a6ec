"""Before each attempt: waits for the nodes, assigns the ranks and starts the workers. On one node, or on several."""

import time
from collections.abc import Callable
from typing import Any, Protocol

from stoker.rundir.events import Note, WaitingForNodes
from stoker.spec.run import AnySpec
from stoker.supervise.nodes.membership import Membership, Node, Timeouts
from stoker.supervise.nodes.multi_node_workers import AssignedNode, AssignedNodes, MultiNodeWorkers
from stoker.supervise.output.reader import OnOutput
from stoker.supervise.recorder import Recorder
from stoker.supervise.signals import Signals
from stoker.supervise.workers.environment import LOOPBACK, RankAssignment, single_node
from stoker.supervise.workers.group import POLL_S, WorkerGroup
from stoker.supervise.workers.launcher import WorkerLauncher
from stoker.supervise.workers.store_server import needs_store_server, open_store_socket

REPORT_WAITING_AFTER_S = 3.0
REPORT_WAITING_EVERY_S = 60.0


class Rendezvous(Protocol):
    def wait_for_nodes(self, signals: Signals) -> bool:
        """Waits until an attempt can start, and assigns the ranks. False when we are asked to stop first."""

    @property
    def world(self) -> int:
        """Workers of the attempt that can start."""

    def node_ranks(self) -> list[dict[str, Any]]:
        """The ranks of each node, for the event; empty for a run on one node without peers."""

    def start_workers(self, spec: AnySpec, *, attempt: int, restart: int, on_output: OnOutput | None) -> WorkerGroup:
        """`on_output` gets the lines that rank 0 prints."""

    def check_leadership(self) -> None:
        """Call it before the run's records are changed. Raises LeadershipLost when another node writes them now."""


class SingleNodeRendezvous:
    def __init__(self, launcher: WorkerLauncher, *, record: Recorder) -> None:
        self._launcher, self._record = launcher, record
        self.world = launcher.workers

    def wait_for_nodes(self, signals: Signals) -> bool:
        return not signals.stop_requested

    def node_ranks(self) -> list[dict[str, Any]]:
        return []

    def start_workers(self, spec: AnySpec, *, attempt: int, restart: int, on_output: OnOutput | None) -> WorkerGroup:
        with open_store_socket(LOOPBACK) as listener:
            assignment = single_node(
                attempt=attempt,
                restart=restart,
                workers=self._launcher.workers,
                port=listener.getsockname()[1],
                store_served=needs_store_server(spec),
            )
            note = _note(self._record)
            return self._launcher.start(spec, assignment, note=note, on_output=on_output, listener=listener)

    def check_leadership(self) -> None:
        """There is no other node."""


class MultiNodeRendezvous:
    """Run by the leader. Its node has the first ranks, so rank 0 and the leader write the run's records on one machine.

    Network storage does not always separate what two machines append to the same file.
    """

    def __init__(
        self, launcher: WorkerLauncher, membership: Membership, *, timeouts: Timeouts, record: Recorder
    ) -> None:
        self._launcher, self._membership, self._timeouts, self._record = launcher, membership, timeouts, record
        self._assigned: AssignedNodes = {}
        self.world = 0

    def wait_for_nodes(self, signals: Signals) -> bool:
        started = reported = time.monotonic()
        while not signals.stop_requested:
            self._membership.poll()
            if self._has_enough_nodes():
                self._assign_ranks()
                return True
            now = time.monotonic()
            if now - reported > (REPORT_WAITING_AFTER_S if reported == started else REPORT_WAITING_EVERY_S):
                reported = now
                self._report_missing_nodes()
            time.sleep(POLL_S)
        return False

    def node_ranks(self) -> list[dict[str, Any]]:
        followers = [_ranks_of(follower.node, follower.first_rank) for follower in self._assigned.values()]
        return [_ranks_of(self._membership.me, 0), *followers]

    def start_workers(self, spec: AnySpec, *, attempt: int, restart: int, on_output: OnOutput | None) -> WorkerGroup:
        address = self._membership.me.address if self._assigned else LOOPBACK
        with open_store_socket(address) as listener:
            assignment = RankAssignment(
                attempt=attempt,
                restart=restart,
                world=self.world,
                first_rank=0,
                node_rank=0,
                nodes=1 + len(self._assigned),
                master_address=address,
                master_port=listener.getsockname()[1],
                store_served=needs_store_server(spec),
            )
            note = _note(self._record)
            own = self._launcher.start(spec, assignment, note=note, on_output=on_output, listener=listener)
        return MultiNodeWorkers(self._membership, own, self._assigned, assignment)

    def check_leadership(self) -> None:
        self._membership.check_leadership()

    def _has_enough_nodes(self) -> bool:
        count, nodes = 1 + len(self._membership.followers()), self._membership.nodes
        settled = self._membership.last_joined + self._timeouts.settle_s
        not_replaced = self._membership.last_lost + self._timeouts.replacement_s
        return count >= nodes.most or (count >= nodes.least and time.monotonic() >= max(settled, not_replaced))

    def _assign_ranks(self) -> None:
        self._assigned, self.world = {}, self._launcher.workers
        for peer, node in list(self._membership.followers().items())[: self._membership.nodes.most - 1]:
            self._assigned[peer] = AssignedNode(node, self.world)
            self.world += node.workers

    def _report_missing_nodes(self) -> None:
        joined = sorted([self._membership.me.index, *(node.index for node in self._membership.followers().values())])
        nodes = self._membership.nodes
        missing = [index for index in range(nodes.most) if index not in joined]
        self._record(WaitingForNodes(joined=joined, missing=missing, least=nodes.least, most=nodes.most))


def _ranks_of(node: Node, first_rank: int) -> dict[str, Any]:
    return node.event_fields() | {"first": first_rank, "workers": node.workers}


def _note(record: Recorder) -> Callable[[str], None]:
    return lambda text: record(Note(text=text))
