"""The workers of several nodes as one group, as the leader sees them."""

from dataclasses import dataclass, replace

from stoker.supervise.nodes.membership import Membership, Node
from stoker.supervise.nodes.messages import (
    FollowerMessage,
    KillWorkers,
    LeaderMessage,
    NodeLeaving,
    StartWorkers,
    TerminateWorkers,
    WorkerEnded,
)
from stoker.supervise.workers.environment import RankAssignment
from stoker.supervise.workers.exit import WorkerExit
from stoker.supervise.workers.group import NODE_LOST, WorkerGroup


@dataclass(frozen=True, slots=True)
class AssignedNode:
    """A follower that takes part in an attempt."""

    node: Node
    first_rank: int

    @property
    def ranks(self) -> range:
        return range(self.first_rank, self.first_rank + self.node.workers)


AssignedNodes = dict[int, AssignedNode]
"""By peer number."""


class MultiNodeWorkers(WorkerGroup):
    """The leader's own workers are running already; the followers are asked to start theirs."""

    def __init__(
        self, membership: Membership, own: WorkerGroup, assigned: AssignedNodes, assignment: RankAssignment
    ) -> None:
        self.world = assignment.world
        self._membership, self._own, self._assigned = membership, own, assigned
        self._attempt = assignment.attempt
        self._ended: dict[int, int] = {}
        self._exits: dict[int, WorkerExit] = {}
        self._leaving_node: Node | None = None
        for node_rank, (peer, follower) in enumerate(assigned.items(), start=1):
            ranks = replace(assignment, first_rank=follower.first_rank, node_rank=node_rank)
            membership.send(peer, StartWorkers(assignment=ranks))

    def poll(self) -> dict[int, int]:
        for peer, message in self._membership.poll():
            if peer in self._assigned:
                self._take(self._assigned[peer], message)
        self._ended |= {rank: code for rank, code in self._own.poll().items() if rank not in self._ended}
        return self._ended

    def exit_of(self, rank: int) -> WorkerExit:
        return self._exits[rank] if rank in self._exits else self._own.exit_of(rank)

    @property
    def regroup_reason(self) -> str | None:
        if self._leaving_node:
            return f"{self._leaving_node} leaves"
        followers, nodes, assigned = self._membership.followers(), self._membership.nodes, 1 + len(self._assigned)
        if assigned > nodes.most > self._membership.me.index:  # the platform stops a leader that has to go
            return f"the run is scaled to {nodes} node{'s' * (nodes != '1')}"
        joined = [node for peer, node in followers.items() if peer not in self._assigned]
        if joined and assigned < nodes.most and 1 + len(followers) >= nodes.least:
            return f"{joined[0]} has joined"
        return None

    @property
    def is_node_leaving(self) -> bool:
        return self._leaving_node is not None

    def terminate(self) -> None:
        self._own.terminate()
        self._send_all(TerminateWorkers())

    def kill(self) -> None:
        self._own.kill()
        self._send_all(KillWorkers())

    def close(self) -> None:
        self._own.close()

    def _send_all(self, message: LeaderMessage) -> None:
        for peer in self._assigned:
            self._membership.send(peer, message)

    def _take(self, follower: AssignedNode, message: FollowerMessage | None) -> None:
        if message is None:
            for rank in follower.ranks:
                if rank not in self._ended:
                    self._ended[rank] = NODE_LOST
                    self._exits[rank] = WorkerExit(
                        rank=rank, code=None, signal=None, line="", output="", lost_node=str(follower.node)
                    )
        elif isinstance(message, NodeLeaving):
            self._leaving_node = follower.node
        elif isinstance(message, WorkerEnded) and message.attempt == self._attempt:
            self._add_exit(follower, message)

    def _add_exit(self, follower: AssignedNode, message: WorkerEnded) -> None:
        if message.rank in follower.ranks and message.rank not in self._ended:
            self._ended[message.rank] = message.code
            self._exits[message.rank] = message.exit
