"""Why a run waits, fails, hangs or is slow: the causes, and their remedies."""

from dataclasses import asdict, dataclass

from stoker.diagnose.facts import DiagnosisFacts
from stoker.diagnose.finding import Finding
from stoker.diagnose.rules import findings
from stoker.rundir import Record
from stoker.rundir.state import RunState

NEEDS_EXPLANATION = (RunState.WAITING, RunState.RESTARTING, RunState.FAILED, RunState.STOPPING)


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    state: RunState
    causes: list[Finding]
    """Root causes first; empty when nothing is wrong."""
    unread: str = ""
    """Why the records of the run could not be read."""


def diagnose(facts: DiagnosisFacts) -> Diagnosis:
    """Pure."""
    return Diagnosis(state=RunState(facts.run.state), causes=findings(facts), unread=facts.unread)


def as_record(diagnosis: Diagnosis) -> Record:
    """For JSON: the first cause, the others, and why the records could not be read."""
    nothing: Record = {"id": None, "cause": None, "remedy": None, "count": 0, "pods": []}
    first, *others = [asdict(cause) for cause in diagnosis.causes] or [nothing]
    return first | {"others": others, "unread": diagnosis.unread}
