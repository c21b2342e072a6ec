"""What a run's own records report about its problems. Problems that it has recovered from are left out."""

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, pairwise
from statistics import median
from typing import Any

from stoker.diagnose.facts import RecordFact, RunFact
from stoker.diagnose.overrides import smaller
from stoker.rundir import Record, RunDir
from stoker.rundir.commands import command_name
from stoker.rundir.events import (
    CheckpointFailed,
    CheckpointSaved,
    Event,
    Failed,
    Fallback,
    NodeLost,
    WaitingForData,
    WaitingForNodes,
    World,
)
from stoker.rundir.log_errors import error_in, last_line
from stoker.rundir.logs import last_lines
from stoker.rundir.records import RECORD_BYTES, Count, typed
from stoker.rundir.state import RunState
from stoker.rundir.view import view
from stoker.spec import contract
from stoker.spec.files import read_regular

LOGGED_STEPS = 200  # newest logged steps that are read
RECENT_STEPS = 10  # the newest of them, or more when they are logged quickly
SLOW_S = 30.0  # how long a run must be slow before it counts as slow
LOG_LINES = 100  # at the end of a log, searched for an error
RECOVERED_S = 120.0  # an attempt that has run this long has recovered from the failure before it
MIN_FREE_BYTES = 16 * 2**20  # with less nothing can be saved


@dataclass(frozen=True, kw_only=True, slots=True)
class _Leader:
    """The address of the leading node, as its supervisor recorded it."""

    node: Count
    address: str
    port: Count
    pod: str


def run_fact(run: RunDir) -> RunFact:
    """For a run on this machine."""
    state, name = view(run).state, command_name(run)
    stop = f"stoker stop {name} && " if state == RunState.RUNNING else ""
    return RunFact(run=name, state=str(state), relaunch=f"{stop}stoker launch {name}", **smaller(run.any_spec()))


def record_fact(run: RunDir) -> RecordFact:
    events = run.events()
    logged = list(islice((record for record in run.metrics_backwards() if "time" in record), LOGGED_STEPS))
    running = run.holder() is not None
    exit = None if running else run.exit()
    trouble = _crash(run, events, logged) | (_waiting(events, logged) if running else {})
    if exit and exit.state == RunState.DONE:
        trouble = {}
    elif exit and exit.state == RunState.FAILED:
        trouble |= {"reason": exit.reason, "advice": exit.remedy}
        if exit.rank is not None and not trouble.get("failing"):
            trouble |= {"rank": exit.rank}
    elif exit and exit.state == RunState.PAUSED:
        trouble = {"reason": exit.reason, "advice": exit.remedy}
    return RecordFact(
        **trouble,
        **_saving(events, logged),
        **(_speed(logged, events) if running else {}),
        **_leader(run),
        disk_full=_is_full(run),
        folder=str(run.path),
    )


def _crash(run: RunDir, events: list[Event], logged: list[Record]) -> dict[str, Any]:
    failed = [event for event in events if isinstance(event, Failed)]
    if not failed:
        return {}
    last = failed[-1]
    if logged and logged[0]["time"] > last.time:
        return {}  # it has trained since
    started = max((event.time for event in events if isinstance(event, World)), default=0.0)
    if started > last.time and time.time() - started > RECOVERED_S:
        return {}  # a script may log nothing at all
    saved = max((event.time for event in events if isinstance(event, CheckpointSaved)), default=0.0)
    return {
        "failing": True,
        "rank": last.rank,
        "signal": last.signal or "",
        **_error(run, last.rank, last.line),
        "crashes": sum(event.time > saved for event in failed),
    }


def _error(run: RunDir, rank: int | None, line: str) -> dict[str, Any]:
    """`line`: the error that its supervisor saw, or its last line. The log may already be that of its successor."""
    lines: list[str] = []
    if rank is not None:
        with suppress(OSError):
            lines = last_lines(run.log(rank), LOG_LINES)
    known = [error for error in (error_in([line]), error_in(lines)) if error]
    error = next((error for error in known if error.kind == "own"), known[0] if known else None)
    if error:
        return {"error": error.line, "symptom": error.kind == "symptom"}
    last = line or last_line(lines)
    return {"error": f"it printed no error; its last line: {last}" if last else "it printed nothing"}


def _waiting(events: list[Event], logged: list[Record]) -> dict[str, Any]:
    """What it waits for: nodes since the last attempt started, data since the last step."""
    facts: dict[str, Any] = {}
    trained = logged[0]["time"] if logged else 0.0
    for event in events:
        if isinstance(event, World):
            facts = {}
        elif isinstance(event, WaitingForNodes):
            facts |= {
                "missing_nodes": ", ".join(map(str, event.missing)),
                "present_nodes": len(event.joined),
                "needed_nodes": str(event.most) if event.least == event.most else f"{event.least}..{event.most}",
            }
        elif isinstance(event, WaitingForData) and event.time > trained:
            facts |= {"waiting_step": event.step}
        elif isinstance(event, NodeLost):
            facts |= {"lost_node": f"{event.node} ({event.pod or event.host})"}
    return facts


def _saving(events: list[Event], logged: list[Record]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    trained = logged[0]["time"] if logged else 0.0
    for event in events:
        if isinstance(event, CheckpointFailed):
            facts["save_error"] = event.reason
        elif isinstance(event, CheckpointSaved):
            facts = {}
        elif isinstance(event, Fallback) and event.time > trained:
            facts["damage"] = f"step {event.step}: {event.reason}"
    return facts


def _speed(logged: list[Record], events: list[Event]) -> dict[str, Any]:
    """`logged`: newest first, of any attempt."""
    started = max((event.time for event in events if isinstance(event, World)), default=0.0)
    current = [record for record in logged if record["time"] > started]
    if len(current) < RECENT_STEPS:
        return {}
    usual = median(newer["time"] - older["time"] for newer, older in pairwise(current))
    silent = time.time() - max(current[0]["time"], events[-1].time if events else 0.0)
    waits = [record["data_wait"] for record in current[:RECENT_STEPS] if record.get("data_wait") is not None]
    speeds = [speed for record in current if (speed := record.get("tokens_per_second") or 0) > 0]
    facts: dict[str, Any] = {"silent_s": silent, "usual_s": usual, "stall_ratio": silent / max(usual, 0.01)}
    if waits:
        facts["data_wait"] = 100 * sum(waits) / len(waits)
    now = max(RECENT_STEPS, sum(record["time"] > current[0]["time"] - SLOW_S for record in current))
    if len(speeds) >= max(4 * RECENT_STEPS, 2 * now):
        facts["speed_percent"] = 100 * median(speeds[:now]) / median(speeds[now:])
    return facts


def _leader(run: RunDir) -> dict[str, Any]:
    file = run.path / contract.MEMBERS_DIR / contract.LEADER_FILE
    try:
        leader = typed(_Leader, read_regular(file, max_bytes=RECORD_BYTES, root=run.path, follow_links=False))
    except (OSError, ValueError):
        return {}
    named = f"node {leader.node} (pod {leader.pod})" if leader.pod else f"node {leader.node}"
    return {"address": leader.address, "port": leader.port, "leader": named}


def _is_full(run: RunDir) -> bool:
    try:
        disk = os.statvfs(run.path)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < MIN_FREE_BYTES
