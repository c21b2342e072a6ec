"""What the workers of a run in a cluster use: `stoker top` in each of its pods, put together here."""

import threading
import time
from dataclasses import dataclass, fields

from stoker.kube import Object, connect
from stoker.launch.jobs import job_kind
from stoker.launch.probe.pods import MOST, evenly
from stoker.launch.reader import runs
from stoker.launch.remote import Remote
from stoker.launch.standing import standing
from stoker.launch.transfer.frames import Cut
from stoker.observe.cluster import rows
from stoker.observe.top import GOES_ON, Use
from stoker.rundir import PlaceRef, RunDir
from stoker.rundir.records import Count, typed
from stoker.spec import contract
from stoker.spec.errors import StokerError

PATIENCE = (
    60.0  # seconds for the first words of all: Python starts slowly beside workers that take all of the processor
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PodUse(Use):
    """What a worker uses of the node that its pod is on."""

    pod: str
    machine: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What `stoker top --json` prints in a pod."""

    state: str
    step: Count
    steps: Count | None
    workers: list[Use]


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    state: str
    step: int
    steps: int | None
    used: list[PodUse]
    unread: dict[str, str]
    """Pods that did not answer -> why."""
    pods: int
    """Of the run that are up; more than were asked where there are very many."""
    asked: int


class ClusterTop:
    """Looks again and again. With `seconds`, one command stays in each pod and reports in that time."""

    def __init__(self, run: RunDir, place: PlaceRef, *, seconds: float | None = None) -> None:
        self._run = run
        self._remote = Remote(run, place, cluster=connect(place.context, place.namespace))
        self._words = ["--json"] + (["--watch", f"{seconds:g}"] if seconds is not None else [])
        self._asked: dict[str, _Asked] = {}

    def look(self) -> Look:
        there = self._pods()
        pods = self._chosen(there)
        self._asked = {name: asked for name, asked in self._asked.items() if name in pods and not asked.ended}
        new = {name: _Asked(self._remote, name, self._words) for name in pods if name not in self._asked}
        end = time.monotonic() + PATIENCE
        for asked in new.values():
            asked.wait(until=end)
        self._asked |= new
        told = [(pods[name], asked.told) for name, asked in self._asked.items() if asked.told]
        used = [_use(worker, pod) for pod, one in told for worker in one.workers]
        state, step, steps = self._where([one for _, one in told], asked=bool(pods))
        return Look(
            state=state,
            step=step,
            steps=steps,
            used=sorted(used, key=lambda use: use.rank),
            unread=self._unread() if state in GOES_ON else {},
            pods=len(there),
            asked=len(pods),
        )

    def _chosen(self, there: list[Object]) -> dict[str, Object]:
        """Of very many, those where a command is already: it stays as long as its pod does."""
        pods = {pod["metadata"]["name"]: pod for pod in there}
        kept = {name: pod for name, pod in pods.items() if name in self._asked and not self._asked[name].ended}
        others = [pod for name, pod in pods.items() if name not in kept]
        return kept | {pod["metadata"]["name"]: pod for pod in evenly(others, MOST - len(kept))}

    def _where(self, told: list[Told], *, asked: bool) -> tuple[str, int, int | None]:
        """As the pod says that is furthest on; where none answers, the cluster, and what was heard of it last."""
        if told:
            furthest = max(told, key=lambda one: one.step)
            return furthest.state, furthest.step, furthest.steps
        if asked:
            place, cluster = self._remote.ref, self._remote.cluster
            now = standing(cluster, place, cluster.get(job_kind(place.job).KIND, place.run))
            seen = self._run.seen()
            return now.state if now else "unknown", seen["view"]["step"] if seen else 0, None
        row = rows([self._run])[0]
        return row.state, row.step, row.steps

    def _unread(self) -> dict[str, str]:
        """While the run goes on; and a pod that has ended since it was chosen owes no answer."""
        wrong = {name: asked.wrong for name, asked in self._asked.items() if asked.wrong}
        there = {pod["metadata"]["name"] for pod in self._pods()} if wrong else set()
        return {name: why for name, why in wrong.items() if name in there}

    def _pods(self) -> list[Object]:
        labels = {contract.LABEL_RUN: self._remote.ref.run}
        found = self._remote.cluster.list("Pod", labels=labels, fields={"status.phase": "Running"})
        return [pod for pod in found if runs(pod)]


class _Asked:
    """A command in a pod."""

    def __init__(self, remote: Remote, pod: str, words: list[str]) -> None:
        self.told: Told | None = None
        """Its newest word."""
        self.wrong = ""
        self.ended = False
        self._heard = threading.Event()
        threading.Thread(target=self._listen, args=(remote, pod, words), daemon=True).start()

    def wait(self, *, until: float) -> None:
        """For its first word, or its end."""
        if not self._heard.wait(max(0.0, until - time.monotonic())):
            self.wrong = f"no answer within {PATIENCE:.0f} seconds"

    def _listen(self, remote: Remote, pod: str, words: list[str]) -> None:
        try:
            for line in remote.ask_pod(pod, "top", *words):
                self.told, self.wrong = typed(Told, line), ""
                self._heard.set()
        except (StokerError, Cut, ValueError) as e:
            self.wrong = e.problem if isinstance(e, StokerError) else str(e)
        finally:
            self.ended = True
            self._heard.set()


def _use(worker: Use, pod: Object) -> PodUse:
    about = {field.name: getattr(worker, field.name) for field in fields(Use)}
    return PodUse(**about, pod=pod["metadata"]["name"], machine=pod["spec"].get("nodeName", ""))
