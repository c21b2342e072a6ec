"""Why a run waits, fails, stands still or is slow: one cause and what to do about it, wherever it lives."""

import importlib
from dataclasses import dataclass
from typing import Any

from stoker.observe.facts import Facts
from stoker.observe.record_facts import record_fact, run_fact
from stoker.observe.rules import Finding, findings
from stoker.rundir import Record, RunDir

ELSEWHERE = {"kubernetes": "stoker.observe.cluster_facts"}
"""What gathers facts of runs that do not live here; heavy, so by name."""
TROUBLED = ("waiting", "restarting", "failed", "stopping")


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    state: str
    causes: list[Finding]
    """The deepest first; none when nothing is wrong."""
    unread: str = ""
    """Why what the run has written down could not be read."""


def diagnose(run: RunDir, *, brief: bool = False) -> Diagnosis:
    """`brief`: of a run elsewhere, with what somebody has read of its records already."""
    facts = gather(run, brief=brief)
    return Diagnosis(state=facts.run.state, causes=findings(facts), unread=facts.unread)


def as_record(found: Diagnosis) -> Record:
    """The first cause, the others, and why the records were not read."""
    nothing: Record = {"id": None, "cause": None, "remedy": None, "count": 0}
    first, *others = [one.model_dump() for one in found.causes] or [nothing]
    return first | {"others": others, "unread": found.unread}


def gather(run: RunDir, *, brief: bool = False) -> Facts:
    place = run.place_ref()
    if place:
        elsewhere: Any = importlib.import_module(ELSEWHERE[place.kind])
        found: Facts = elsewhere.gather(run, brief=brief)
        return found
    return Facts(run=run_fact(run), record=record_fact(run))
