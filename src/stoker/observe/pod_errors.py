"""Which of the pods that failed is the reason: from the ends of their logs, which hold what all workers printed."""

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from stoker.kube import Cluster
from stoker.rundir.log_errors import error_in, last_line
from stoker.spec import contract
from stoker.spec.errors import StokerError

MOST_READ = 32  # pods that failed whose logs are read, the first of them first
AT_ONCE = 8
LINES = 200  # of each
RANKED = re.compile(r"\[(\d{1,6})\] ?")  # as a supervisor prints what its workers do
VICTIMS = (contract.EXIT_AGAIN, 143)
"""Exit codes of pods that ended for another's sake: a supervisor that is to be started again, and SIGTERM."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PodError:
    text: str
    """The error, or where there is none the last line; empty when it printed nothing or cannot be read."""
    kind: Literal["own", "abort", "symptom", ""]
    """As in `log_errors`; empty when the text is no error."""


NOTHING = PodError(text="", kind="")


def pod_error(lines: Sequence[str]) -> PodError:
    """Of one pod. Pure: the workers' lines are told apart by their ranks, and what one of them names itself counts."""
    by_rank: dict[str, list[str]] = {}
    for line in lines:
        found = RANKED.match(line)
        by_rank.setdefault(found[1] if found else "", []).append(line[found.end() :] if found else line)
    supervisor = by_rank.pop("", [])
    errors = [error for some in (*by_rank.values(), supervisor) if (error := error_in(some))]
    for kind in ("own", "symptom", "abort"):
        if error := next((error for error in errors if error.kind == kind), None):
            return PodError(text=error.line, kind=error.kind)
    last = last_line([RANKED.sub("", line) for line in lines])
    return PodError(text=f"it printed no error; its last line: {last}" if last else "", kind="")


def read_errors(cluster: Cluster, pods: Sequence[str], container: str) -> dict[str, PodError]:
    """Of those that failed, in the order given."""

    def read(pod: str) -> PodError:
        try:
            return pod_error(list(cluster.logs(pod, container=container, tail=LINES)))
        except StokerError:
            return NOTHING

    some = pods[:MOST_READ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(some, pool.map(read, some), strict=True))


def is_victim(error: PodError, code: int | None) -> bool:
    """It failed because another pod had."""
    return error.kind == "symptom" or (error.kind != "own" and code in VICTIMS)


def first_cause(errors: Mapping[str, PodError], codes: Mapping[str, int | None]) -> str | None:
    """The pod that failed by itself; of several the first in the order given. An error of its own counts most."""

    def innocence(pod: str) -> int:
        if errors[pod].kind == "own":
            return 0
        return 2 if is_victim(errors[pod], codes.get(pod)) else 1

    return min(errors, key=innocence, default=None)
