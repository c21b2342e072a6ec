"""A node that follows: it starts and ends its workers as the leader says, and reports how each of them ended."""

import sys
import threading
import time
from dataclasses import asdict, dataclass, replace

from stoker.spec import contract
from stoker.supervise.crew import MERCY, POLL, Crew
from stoker.supervise.members import Leader, Node, Patience, read_token
from stoker.supervise.signals import Signals
from stoker.supervise.wire import Message, Wire
from stoker.supervise.workers import Job, Launch

LAST_WORDS = 8000  # characters of what a worker printed that are sent to the leader


@dataclass(frozen=True, kw_only=True, slots=True)
class Parting:
    """How the time with a leader ended."""

    met: bool = False
    """Whether there was one that took us in."""
    code: int | None = None
    """To end with; None when another leader is to be found."""


def follow(job: Job, me: Node, leader: Leader, *, signals: Signals, patience: Patience) -> Parting:
    token = read_token(job.run)
    if token is None:
        return Parting()
    wire = Wire(token=token, silence=patience.silence)
    try:
        peer = wire.connect(leader.address, leader.port, asdict(me))
    except OSError:
        wire.stop()
        return Parting()
    follower = _Follower(job, wire, peer, signals, greeting=f"{me} follows node {leader.node} at {leader.address}")
    try:
        code = follower.serve()
        return Parting(met=follower.met, code=code)
    finally:
        follower.end()
        wire.stop()


class _Follower:
    def __init__(self, job: Job, wire: Wire, leader: int, signals: Signals, *, greeting: str) -> None:
        self._job, self._wire, self._leader, self._signals = job, wire, leader, signals
        self._greeting = greeting
        self.met = False
        self._workers: Crew | None = None
        self._attempt = 0
        self._reported: set[int] = set()
        self._leaving = False
        self._over: int | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._guard, daemon=True, name="guard").start()

    def serve(self) -> int | None:
        """Until the run is over, we leave, or the leader is gone."""
        while True:
            for _, message in self._wire.news():
                if message is None:
                    return self._over
                self._obey(message)
            self._report()
            if self._over is not None:
                return self._over
            if self._signals.stopping and not self._leaving:
                self._leaving = True
                self._tell("leaving")
                if self._workers:
                    self._workers.terminate()
            if self._signals.impatient and self._workers:
                self._workers.kill()
            if self._leaving and (self._workers is None or len(self._reported) == self._workers.world):
                return contract.EXIT_AGAIN
            time.sleep(POLL)

    def end(self) -> None:
        """Without a leader the peers of our workers are gone too."""
        self._end_workers()
        self._ended.set()

    def _guard(self) -> None:
        """No worker outlives the leader for longer than it counts on.

        It touches no storage: whoever reads or writes there may hang for ever, while others take our workers' place.
        """
        self._wire.gone.wait()
        mercy = time.monotonic() + MERCY
        while not self._ended.wait(POLL):
            if (workers := self._workers) and time.monotonic() > mercy:
                workers.kill()

    def _end_workers(self) -> None:
        if self._workers:
            self._workers.end()
            self._workers = None

    def _obey(self, message: Message) -> None:
        kind = message.get("kind")
        if kind == "welcome":
            self.met = True
            print(f"stoker: {self._greeting}", file=sys.stderr, flush=True)
        elif kind == "start":
            self._start(Launch(**message["launch"]))
        elif kind == "over":
            self._over = int(message["code"])
        elif kind == "terminate" and self._workers:
            self._workers.terminate()
        elif kind == "kill" and self._workers:
            self._workers.kill()

    def _start(self, launch: Launch) -> None:
        self._end_workers()
        self._attempt, self._reported = launch.attempt, set()
        spec = self._job.run.any_spec()
        self._workers = self._job.start(spec, launch, note=lambda text: self._tell("note", text=text))
        if self._leaving:  # it was said while we were told to start
            self._workers.terminate()

    def _report(self) -> None:
        if self._workers is None:
            return
        for rank, code in self._workers.poll().items():
            if rank not in self._reported:
                self._reported.add(rank)
                death = self._workers.death(rank)
                death = replace(death, said=death.said[-LAST_WORDS:])
                self._tell("ended", attempt=self._attempt, rank=rank, code=code, death=asdict(death))

    def _tell(self, kind: str, **facts: object) -> None:
        self._wire.send(self._leader, {"kind": kind, **facts})
