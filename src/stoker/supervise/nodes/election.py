"""Decides which node leads: the one that gets the run's lock. The others follow it."""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from stoker.rundir import RunDir, RunHeld
from stoker.spec import contract
from stoker.spec.on import Nodes
from stoker.storage.sync import mirrored
from stoker.supervise.crash_loop import end_crash_loop
from stoker.supervise.nodes.follower import follow
from stoker.supervise.nodes.membership import LeadershipLost, Membership, Node, Timeouts, find_leader
from stoker.supervise.nodes.rendezvous import MultiNodeRendezvous, Rendezvous
from stoker.supervise.recorder import recorder
from stoker.supervise.signals import Signals
from stoker.supervise.supervisor import supervise
from stoker.supervise.workers.launcher import WorkerLauncher

RETRY_S = 0.2  # between two attempts to lead or to find a leader
REPORT_WAITING_EVERY_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeOptions:
    """What the command line tells a node about the run's nodes."""

    me: Node
    port: int
    nodes: Nodes


def run_node(launcher: WorkerLauncher, options: NodeOptions, *, signals: Signals, timeouts: Timeouts) -> int:
    """Leads or follows until the run ends or this node gives up. Returns the exit code: the run's, or "restart me"."""
    me = options.me
    no_leader_since = reported = time.monotonic()
    while not signals.stop_requested:
        may_lead = me.index == 0 or time.monotonic() - no_leader_since >= timeouts.head_start_s
        if may_lead and (code := _lead(launcher, options, signals=signals, timeouts=timeouts)) is not None:
            return code
        if (leader := find_leader(launcher.run)) and leader.port:
            result = follow(launcher, me, leader, signals=signals, timeouts=timeouts)
            if result.code is not None:
                return result.code
            if result.accepted:
                no_leader_since = reported = time.monotonic()
        if (options.nodes.most > 1 or me.index) and time.monotonic() - no_leader_since > timeouts.no_leader_s:
            _print(f"{me} found no leader that accepts it: giving up")
            break
        if time.monotonic() - reported > REPORT_WAITING_EVERY_S:
            reported = time.monotonic()
            _print(f"{me} waits for {_lock_holder(launcher.run)}")
        time.sleep(RETRY_S)
    return contract.EXIT_AGAIN


def _lead(launcher: WorkerLauncher, options: NodeOptions, *, signals: Signals, timeouts: Timeouts) -> int | None:
    """None when another process holds the lock."""
    run, me = launcher.run, options.me
    with ExitStack() as stack:
        try:
            stack.enter_context(run.lock())
        except RunHeld:
            return None
        ended = run.exit()
        if ended and ended.code != contract.EXIT_SAVED:
            return ended.code  # the run has ended; to resume it, `stoker launch` removes exit.json first
        if exit := end_crash_loop(run):
            return exit.code
        port = options.port if me.address else None
        membership = Membership(run, me, port, nodes=options.nodes, timeouts=timeouts, record=recorder(run))
        _print(f"{me} leads")
        run_code: int | None = None
        try:
            rendezvous = MultiNodeRendezvous(launcher, membership, timeouts=timeouts, record=recorder(run))
            code = _pod_exit_code(_supervise(run, rendezvous, signals))
            run_code = None if signals.stop_requested and code == contract.EXIT_AGAIN else code
            return code
        except LeadershipLost:
            _print(f"{me} no longer leads: another node does")
            return contract.EXIT_AGAIN  # our workers die with this process
        finally:
            membership.close(run_code)


def _supervise(run: RunDir, rendezvous: Rendezvous, signals: Signals) -> int:
    work: Callable[[], int] = partial(supervise, run, rendezvous=rendezvous, signals=signals)
    return mirrored(run, work, hurry=lambda: signals.kill_requested)


def _pod_exit_code(code: int) -> int:
    return contract.EXIT_AGAIN if code == contract.EXIT_SAVED else code


def _lock_holder(run: RunDir) -> str:
    holder = run.holder()
    if holder is None:
        return "the run's lock"
    return f"process {holder['pid']} on {holder['host']}, which holds the run's lock, to be reachable or to end"


def _print(message: str) -> None:
    print(f"stoker: {message}", file=sys.stderr, flush=True)
