"""A node of a run: it leads when it can have the run's lock, and follows the one that has it when not."""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from stoker.rundir import Held, RunDir
from stoker.spec import contract
from stoker.spec.on import Nodes
from stoker.storage.sync import mirrored
from stoker.supervise.follow import follow
from stoker.supervise.members import Deposed, Members, Node, Patience, find_leader
from stoker.supervise.muster import Muster, Together
from stoker.supervise.signals import Signals
from stoker.supervise.silence import give_up
from stoker.supervise.supervisor import noted, supervise
from stoker.supervise.workers import Job

PAUSE = 0.2  # seconds between two looks for a leader
REMINDER = 60.0  # seconds between two words about waiting


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """What a node knows of the run's nodes before it meets them."""

    me: Node
    port: int
    nodes: Nodes


def take_part(job: Job, place: Place, *, signals: Signals, patience: Patience) -> int:
    """Returns the code to end with: how the run ended, or that this node should be started again."""
    alone_since = told = time.monotonic()
    while not signals.stopping:
        may_lead = place.me.node == 0 or time.monotonic() - alone_since >= patience.head_start
        if may_lead and (code := _lead(job, place, signals=signals, patience=patience)) is not None:
            return code
        if (leader := find_leader(job.run)) and leader.port:
            parting = follow(job, place.me, leader, signals=signals, patience=patience)
            if parting.code is not None:
                return parting.code
            if parting.met:
                alone_since = told = time.monotonic()
        if (place.nodes.most > 1 or place.me.node) and time.monotonic() - alone_since > patience.forlorn:
            _say(f"{place.me} has found no leader that takes it in: giving up")
            break
        if time.monotonic() - told > REMINDER:
            told = time.monotonic()
            _say(f"{place.me} waits for {_obstacle(job.run)}")
        time.sleep(PAUSE)
    return contract.EXIT_AGAIN


def _lead(job: Job, place: Place, *, signals: Signals, patience: Patience) -> int | None:
    """None when another holds the lock."""
    run = job.run
    with ExitStack() as stack:
        try:
            stack.enter_context(run.lock())
        except Held:
            return None
        ended = run.exit()
        if ended and ended.code != contract.EXIT_SAVED:
            return ended.code  # we come too late. Who wants it to go on from there removes exit.json
        if end := give_up(run):
            return end.code
        port = place.port if place.me.address else None
        members = Members(run, place.me, port, nodes=place.nodes, patience=patience, note=noted(run))
        _say(f"{place.me} leads")
        over: int | None = None
        try:
            muster = Together(job, members, patience=patience, note=noted(run))
            code = _in_a_pod(_judge(run, muster, signals))
            over = None if signals.stopping and code == contract.EXIT_AGAIN else code
            return code
        except Deposed:
            _say(f"{place.me} no longer leads: another node does")
            return contract.EXIT_AGAIN  # our workers end with this process
        finally:
            members.close(over)


def _judge(run: RunDir, muster: Muster, signals: Signals) -> int:
    work: Callable[[], int] = partial(supervise, run, muster=muster, signals=signals)
    return mirrored(run, work, hurry=lambda: signals.impatient)


def _in_a_pod(code: int) -> int:
    return contract.EXIT_AGAIN if code == contract.EXIT_SAVED else code


def _obstacle(run: RunDir) -> str:
    holder = run.holder()
    return f"process {holder['pid']} on {holder['host']} to be reachable or gone" if holder else "the run's lock"


def _say(words: str) -> None:
    print(f"stoker: {words}", file=sys.stderr, flush=True)
