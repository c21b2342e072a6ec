"""What the workers of a run in a cluster use: `stoker top` in each of its pods, combined here."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from stoker.backends.backend import Usage
from stoker.backends.kubernetes.jobs import job_kind
from stoker.backends.kubernetes.state import MAX_ASKED, evenly, is_up, job_state
from stoker.backends.kubernetes.view import rows
from stoker.backends.kubernetes.volume.remote import VolumeRun
from stoker.backends.local.top import Use
from stoker.backends.transfer.frames import PeerLost
from stoker.kube import Object
from stoker.rundir import RunDir
from stoker.rundir.records import Count, typed
from stoker.rundir.state import RunState
from stoker.spec import contract
from stoker.spec.errors import StokerError

FIRST_REPORT_TIMEOUT_S = 60.0  # Python starts slowly beside workers that use all cores


@dataclass(frozen=True, kw_only=True, slots=True)
class PodUsage:
    """What `top` reports in a pod."""

    state: RunState
    step: Count
    steps: Count | None
    workers: list[Use]


def usage(run: RunDir, remote: VolumeRun, *, every_s: float | None) -> Iterator[Usage]:
    """While the run is active, and once when it is not."""
    top = ClusterTop(run, remote, every_s=every_s)
    while True:
        current = top.read()
        yield current
        if not current.workers and not current.state.is_active:
            return


class ClusterTop:
    """Reads the usage repeatedly. With `every_s`, one command stays in each pod and reports at that interval."""

    def __init__(self, run: RunDir, remote: VolumeRun, *, every_s: float | None = None) -> None:
        self._run, self._remote = run, remote
        self._every_s = every_s
        self._commands: dict[str, _TopCommand] = {}

    def read(self) -> Usage:
        running = self._running_pods()
        pods = self._chosen(running)
        self._commands = {name: top for name, top in self._commands.items() if name in pods and not top.ended}
        new = {name: _TopCommand(self._remote, name, self._every_s) for name in pods if name not in self._commands}
        end = time.monotonic() + FIRST_REPORT_TIMEOUT_S
        for command in new.values():
            command.wait(until=end)
        self._commands |= new
        reports = [(pods[name], command.report) for name, command in self._commands.items() if command.report]
        uses = [_with_pod(worker, pod) for pod, report in reports for worker in report.workers]
        state, step, steps = self._progress([report for _, report in reports], asked=bool(pods))
        return Usage(
            state=state,
            step=step,
            steps=steps,
            workers=sorted(uses, key=lambda use: use.rank),
            unread=self._unread() if state.is_active else {},
            pods=len(running),
            asked=len(pods),
        )

    def _chosen(self, running: list[Object]) -> dict[str, Object]:
        """At most MAX_ASKED pods, those that already run a command first."""
        pods = {pod["metadata"]["name"]: pod for pod in running}
        kept = {name: pod for name, pod in pods.items() if name in self._commands and not self._commands[name].ended}
        others = [pod for name, pod in pods.items() if name not in kept]
        return kept | {pod["metadata"]["name"]: pod for pod in evenly(others, MAX_ASKED - len(kept))}

    def _progress(self, reports: list[PodUsage], *, asked: bool) -> tuple[RunState, int, int | None]:
        """From the pod with the highest step; where none answers, from the cluster and the cached records."""
        if reports:
            furthest = max(reports, key=lambda report: report.step)
            return furthest.state, furthest.step, furthest.steps
        if asked:
            place, cluster = self._remote.place, self._remote.cluster
            state = job_state(cluster, place, cluster.get(job_kind(place.job).KIND, place.run))
            seen = self._run.seen()
            return state.state if state else RunState.UNKNOWN, seen["view"]["step"] if seen else 0, None
        row = rows([self._run])[0]
        return row.state, row.step, row.steps

    def _unread(self) -> dict[str, str]:
        """Pods that did not answer, without those that have ended since they were asked."""
        errors = {name: command.error for name, command in self._commands.items() if command.error}
        running = {pod["metadata"]["name"] for pod in self._running_pods()} if errors else set()
        return {name: error for name, error in errors.items() if name in running}

    def _running_pods(self) -> list[Object]:
        labels = {contract.LABEL_RUN: self._remote.place.run}
        pods = self._remote.cluster.list("Pod", labels=labels, fields={"status.phase": "Running"})
        return [pod for pod in pods if is_up(pod)]


class _TopCommand:
    """`top` in one pod."""

    def __init__(self, remote: VolumeRun, pod: str, every_s: float | None) -> None:
        self.report: PodUsage | None = None
        """The newest."""
        self.error = ""
        self.ended = False
        self._answered = threading.Event()
        threading.Thread(target=self._listen, args=(remote, pod, every_s), daemon=True).start()

    def wait(self, *, until: float) -> None:
        """For its first report, or its end."""
        if not self._answered.wait(max(0.0, until - time.monotonic())):
            self.error = f"no answer within {FIRST_REPORT_TIMEOUT_S:.0f} seconds"

    def _listen(self, remote: VolumeRun, pod: str, every_s: float | None) -> None:
        try:
            for line in remote.ask_pod(pod, "top", every_s=every_s):
                self.report, self.error = typed(PodUsage, line), ""
                self._answered.set()
        except (StokerError, PeerLost, ValueError) as e:
            self.error = e.problem if isinstance(e, StokerError) else str(e)
        finally:
            self.ended = True
            self._answered.set()


def _with_pod(worker: Use, pod: Object) -> Use:
    return replace(worker, pod=pod["metadata"]["name"], machine=pod["spec"].get("nodeName", ""))
