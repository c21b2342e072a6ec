"""A node that follows: starts and ends its workers when the leader asks, and reports how each of them ended."""

import sys
import threading
import time
from dataclasses import asdict, dataclass, replace

from stoker.spec import contract
from stoker.supervise.nodes.connections import PeerConnections
from stoker.supervise.nodes.membership import Leader, Node, Timeouts, read_token
from stoker.supervise.nodes.messages import (
    Accepted,
    FollowerMessage,
    KillWorkers,
    LeaderMessage,
    NodeLeaving,
    NodeNote,
    RunEnded,
    StartWorkers,
    TerminateWorkers,
    WorkerEnded,
    encode,
    parse_leader_message,
)
from stoker.supervise.signals import Signals
from stoker.supervise.workers.environment import RankAssignment
from stoker.supervise.workers.group import KILL_AFTER_S, POLL_S, WorkerGroup
from stoker.supervise.workers.launcher import WorkerLauncher

MAX_OUTPUT_CHARS = 8000  # of a worker's output that is sent to the leader


@dataclass(frozen=True, kw_only=True, slots=True)
class FollowResult:
    accepted: bool = False
    """Whether the leader accepted this node."""
    code: int | None = None
    """The code to exit with; None if this node should look for another leader."""


def follow(launcher: WorkerLauncher, me: Node, leader: Leader, *, signals: Signals, timeouts: Timeouts) -> FollowResult:
    """Returns when the run has ended, this node leaves, or the leader is lost."""
    token = read_token(launcher.run)
    if token is None:
        return FollowResult()
    connections = PeerConnections(token=token, timeout_s=timeouts.leader_silence_s)
    try:
        peer = connections.connect(leader.address, leader.port, asdict(me))
    except (OSError, UnicodeError):  # UnicodeError: the address in a damaged leader.json is not a host name
        connections.close()
        return FollowResult()
    greeting = f"{me} follows node {leader.node} at {leader.address}"
    follower = _Follower(launcher, connections, peer, signals, greeting=greeting)
    try:
        code = follower.serve()
        return FollowResult(accepted=follower.accepted, code=code)
    finally:
        follower.end()
        connections.close()


class _Follower:
    def __init__(
        self, launcher: WorkerLauncher, connections: PeerConnections, leader: int, signals: Signals, *, greeting: str
    ) -> None:
        self._launcher, self._connections, self._leader, self._signals = launcher, connections, leader, signals
        self._greeting = greeting
        self.accepted = False
        self._workers: WorkerGroup | None = None
        self._attempt = 0
        self._reported: set[int] = set()
        self._leaving = False
        self._run_code: int | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._kill_orphans, daemon=True, name="kill-orphans").start()

    def serve(self) -> int | None:
        """Returns the code to exit with; None when the leader is lost."""
        while True:
            for _, record in self._connections.receive():
                if record is None:
                    return self._run_code
                if message := parse_leader_message(record):
                    self._handle(message)
            self._report_ended_workers()
            if self._run_code is not None:
                return self._run_code
            if self._signals.stop_requested and not self._leaving:
                self._leaving = True
                self._send(NodeLeaving())
                if self._workers:
                    self._workers.terminate()
            if self._signals.kill_requested and self._workers:
                self._workers.kill()
            if self._leaving and (self._workers is None or len(self._reported) == self._workers.world):
                return contract.EXIT_AGAIN
            time.sleep(POLL_S)

    def end(self) -> None:
        """Ends the workers: without a leader their peers are gone too."""
        self._end_workers()
        self._ended.set()

    def _kill_orphans(self) -> None:
        """Kills the workers when the leader is lost, before it starts others in their place.

        This thread does not touch storage: a read or write there may hang forever.
        """
        self._connections.peer_lost.wait()
        deadline = time.monotonic() + KILL_AFTER_S
        while not self._ended.wait(POLL_S):
            if (workers := self._workers) and time.monotonic() > deadline:
                workers.kill()

    def _end_workers(self) -> None:
        if self._workers:
            self._workers.end()
            self._workers = None

    def _handle(self, message: LeaderMessage) -> None:
        match message:
            case Accepted():
                self.accepted = True
                print(f"stoker: {self._greeting}", file=sys.stderr, flush=True)
            case StartWorkers():
                self._start(message.assignment)
            case RunEnded():
                self._run_code = message.code
            case TerminateWorkers():
                if self._workers:
                    self._workers.terminate()
            case KillWorkers():
                if self._workers:
                    self._workers.kill()

    def _start(self, assignment: RankAssignment) -> None:
        self._end_workers()
        self._attempt, self._reported = assignment.attempt, set()
        spec = self._launcher.run.any_spec()
        self._workers = self._launcher.start(spec, assignment, note=lambda text: self._send(NodeNote(text=text)))
        if self._leaving:  # the leader had not read that yet
            self._workers.terminate()

    def _report_ended_workers(self) -> None:
        if self._workers is None:
            return
        for rank, code in self._workers.poll().items():
            if rank not in self._reported:
                self._reported.add(rank)
                exit = self._workers.exit_of(rank)
                exit = replace(exit, output=exit.output[-MAX_OUTPUT_CHARS:])
                self._send(WorkerEnded(attempt=self._attempt, rank=rank, code=code, exit=exit))

    def _send(self, message: FollowerMessage) -> None:
        self._connections.send(self._leader, encode(message))
