"""Which of several failed pods caused the failure, from the ends of their logs."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from stoker.backends.kubernetes.logs import RANKED
from stoker.kube import Cluster, ClusterError
from stoker.rundir.log_errors import error_in, last_line
from stoker.spec import contract

MAX_READ = 32  # failed pods whose logs are read
CONCURRENT_READS = 8
LINES = 200  # of each log
FOLLOW_UP_CODES = (contract.EXIT_AGAIN, 143)
"""Exit codes of pods that ended because another failed: a supervisor that asks for a restart, and SIGTERM."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PodError:
    text: str
    """The error, else the last line; empty when there is no output or the log cannot be read."""
    kind: Literal["own", "abort", "symptom", ""]
    """As in `log_errors`; empty when `text` is not an error."""


NO_ERROR = PodError(text="", kind="")


def pod_error(lines: Sequence[str]) -> PodError:
    """The error in the log of one pod, where each line begins with the rank of its worker. Pure."""
    by_rank: dict[str, list[str]] = {}
    for line in lines:
        match = RANKED.match(line)
        by_rank.setdefault(match[1] if match else "", []).append(line[match.end() :] if match else line)
    supervisor = by_rank.pop("", [])
    errors = [error for output in (*by_rank.values(), supervisor) if (error := error_in(output))]
    for kind in ("own", "symptom", "abort"):
        if error := next((error for error in errors if error.kind == kind), None):
            return PodError(text=error.line, kind=error.kind)
    last = last_line([RANKED.sub("", line) for line in lines])
    return PodError(text=f"it printed no error; its last line: {last}" if last else "", kind="")


def read_errors(cluster: Cluster, pods: Sequence[str], container: str) -> dict[str, PodError]:
    """Of failed pods, in the order given."""

    def read(pod: str) -> PodError:
        try:
            return pod_error(list(cluster.logs(pod, container=container, tail=LINES)))
        except ClusterError:
            return NO_ERROR

    read_pods = pods[:MAX_READ]
    with ThreadPoolExecutor(CONCURRENT_READS) as pool:
        return dict(zip(read_pods, pool.map(read, read_pods), strict=True))


def is_follow_up(error: PodError, code: int | None) -> bool:
    """It failed because another pod had failed."""
    return error.kind == "symptom" or (error.kind != "own" and code in FOLLOW_UP_CODES)


def first_cause(errors: Mapping[str, PodError], codes: Mapping[str, int | None]) -> str | None:
    """The pod that failed first by itself, in the order given; preferably one that printed an error of its own."""

    def rank(pod: str) -> int:
        if errors[pod].kind == "own":
            return 0
        return 2 if is_follow_up(errors[pod], codes.get(pod)) else 1

    return min(errors, key=rank, default=None)
