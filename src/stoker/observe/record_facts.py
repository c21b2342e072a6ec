"""What a run's own records say of its trouble: of what happened before it went well again, nothing."""

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, pairwise
from statistics import median
from typing import Any

from stoker.launch.command_word import command_word
from stoker.observe.facts import RecordFact, RunFact
from stoker.observe.launch_words import lighter
from stoker.observe.logs import last_lines
from stoker.observe.runs import view
from stoker.rundir import Record, RunDir
from stoker.rundir.files import read_regular
from stoker.rundir.log_errors import error_in, last_line
from stoker.rundir.records import RECORD_BYTES, Count, typed
from stoker.spec import contract

FRESH = 200  # logged steps that are looked at
LATELY = 10  # of them that are now, or more where they come quickly
LASTING = 30.0  # seconds that a run has to be slow before it is said to be
HINDMOST = 100  # lines of a log in which its error is looked for
STEADY = 120.0  # seconds after which an attempt is taken to have got over what ended the one before
SCARCE = 16 * 2**20  # bytes: with fewer nothing can be saved


@dataclass(frozen=True, kw_only=True, slots=True)
class _Leader:
    """Where the leading node is, as its supervisor wrote it."""

    node: Count
    address: str
    port: Count
    pod: str


def run_fact(run: RunDir) -> RunFact:
    """Of a run that lives here."""
    now, word = view(run), command_word(run)
    again = f"stoker stop {word} && stoker launch {word}" if now.state == "running" else f"stoker launch {word}"
    return RunFact(run=word, state=now.state, again=again, **lighter(run.any_spec()))


def record_fact(run: RunDir) -> RecordFact:
    events = run.events()
    logged = list(islice((record for record in run.metrics_backwards() if "time" in record), FRESH))
    running = run.holder() is not None
    exit = None if running else run.exit()
    trouble = _crash(run, events, logged) | (_waiting(events, logged) if running else {})
    if exit and exit.state == "done":
        trouble = {}
    elif exit and exit.state == "failed":
        trouble |= {"reason": exit.reason, "advice": exit.remedy}
        if exit.rank is not None and not trouble.get("failing"):
            trouble |= {"rank": exit.rank}
    elif exit and exit.state == "paused":
        trouble = {"reason": exit.reason, "advice": exit.remedy}
    return RecordFact(
        **trouble,
        **_saving(events, logged),
        **(_speed(logged, events) if running else {}),
        **_leader(run),
        full=_is_full(run),
        place=str(run.path),
    )


def _crash(run: RunDir, events: list[Record], logged: list[Record]) -> dict[str, Any]:
    failed = [event for event in events if event["kind"] == "failed"]
    if not failed:
        return {}
    last = failed[-1]
    if logged and logged[0]["time"] > last["time"]:
        return {}  # it has trained since
    begun = max((event["time"] for event in events if event["kind"] == "world"), default=0.0)
    if begun > last["time"] and time.time() - begun > STEADY:
        return {}  # a script may log nothing at all
    saved = max((event["time"] for event in events if event["kind"] == "checkpoint"), default=0.0)
    rank = last.get("rank")
    return {
        "failing": True,
        "rank": rank,
        "signal": last.get("signal") or "",
        **_error(run, rank, last.get("line") or ""),
        "crashes": sum(event["time"] > saved for event in failed),
    }


def _error(run: RunDir, rank: int | None, line: str) -> dict[str, Any]:
    """`line`: its error as its supervisor saw it, or its last line. Its log may by now be of the worker after it."""
    lines: list[str] = []
    if rank is not None:
        with suppress(OSError):
            lines = last_lines(run.log(rank), HINDMOST)
    known = [error for error in (error_in([line]), error_in(lines)) if error]
    error = next((error for error in known if error.kind == "own"), known[0] if known else None)
    if error:
        return {"error": error.line, "symptom": error.kind == "symptom"}
    last = line or last_line(lines)
    return {"error": f"it printed no error; its last line: {last}" if last else "it printed nothing"}


def _waiting(events: list[Record], logged: list[Record]) -> dict[str, Any]:
    """For nodes, since the last attempt began; for data, since the last step."""
    found: dict[str, Any] = {}
    trained = logged[0]["time"] if logged else 0.0
    for event in events:
        kind = event["kind"]
        if kind == "world":
            found = {}
        elif kind == "waiting" and {"missing", "here", "least", "most"} <= event.keys():
            least, most = event["least"], event["most"]
            found |= {
                "waits_for": ", ".join(map(str, event["missing"])),
                "here": len(event["here"]),
                "needed": str(most) if least == most else f"{least}..{most}",
            }
        elif kind == "waiting" and "step" in event and event["time"] > trained:
            found |= {"starved": event["step"]}
        elif kind == "lost":
            found |= {"lost": f"{event.get('node', '?')} ({event.get('pod') or event.get('host', '?')})"}
    return found


def _saving(events: list[Record], logged: list[Record]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    trained = logged[0]["time"] if logged else 0.0
    for event in events:
        if event["kind"] == "checkpoint failed":
            found["unsaved"] = event.get("reason") or ""
        elif event["kind"] == "checkpoint":
            found = {}
        elif event["kind"] == "fallback" and event["time"] > trained:
            found["damaged"] = f"that of step {event.get('step', '?')}: {event.get('reason', '?')}"
    return found


def _speed(logged: list[Record], events: list[Record]) -> dict[str, Any]:
    """`logged`: newest first, of any attempt."""
    began = max((event["time"] for event in events if event["kind"] == "world"), default=0.0)
    here = [record for record in logged if record["time"] > began]
    if len(here) < LATELY:
        return {}
    usual = median(newer["time"] - older["time"] for newer, older in pairwise(here))
    silent = time.time() - max(here[0]["time"], events[-1]["time"] if events else 0.0)
    waits = [record["data_wait"] for record in here[:LATELY] if record.get("data_wait") is not None]
    speeds = [record["tokens_per_second"] for record in here if record.get("tokens_per_second")]
    found: dict[str, Any] = {"silent": silent, "usual": usual, "stall": silent / max(usual, 0.01)}
    if waits:
        found["data_wait"] = 100 * sum(waits) / len(waits)
    now = max(LATELY, sum(record["time"] > here[0]["time"] - LASTING for record in here))
    if len(speeds) >= max(4 * LATELY, 2 * now):
        found["pace"] = 100 * median(speeds[:now]) / median(speeds[now:])
    return found


def _leader(run: RunDir) -> dict[str, Any]:
    file = run.path / contract.MEMBERS_DIR / contract.LEADER_FILE
    try:
        leader = typed(_Leader, read_regular(file, max_bytes=RECORD_BYTES, root=run.path))
    except (OSError, ValueError):
        return {}
    named = f"node {leader.node} (pod {leader.pod})" if leader.pod else f"node {leader.node}"
    return {"address": leader.address, "port": leader.port, "leader": named}


def _is_full(run: RunDir) -> bool:
    try:
        disk = os.statvfs(run.path)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < SCARCE
