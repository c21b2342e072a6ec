"""The records of a run on its volume, asked for while other things are looked at, and not waited for too long."""

import threading
from dataclasses import asdict, dataclass

from stoker.kube import Cluster
from stoker.launch.remote import Remote
from stoker.launch.transfer.frames import Cut
from stoker.observe.facts import RecordFact
from stoker.rundir import PlaceRef, Record, RunDir
from stoker.rundir.records import typed
from stoker.spec import contract
from stoker.spec.errors import StokerError

TRIED = 2  # live pods that are asked


@dataclass(frozen=True, kw_only=True, slots=True)
class _Told:
    """Of the facts that the command prints, what the records say."""

    record: RecordFact


class Asked:
    """`stoker why --facts`, in a pod that sees the volume: a live one, or when all have `ended` one made for it."""

    def __init__(self, run: RunDir, place: PlaceRef, cluster: Cluster, *, ended: bool) -> None:
        self._run, self._place, self._ended = run, place, ended
        self._there = Remote(run, place, cluster=cluster)
        self._record: RecordFact | None = None
        self._unread = "it takes too long"
        self._thread = threading.Thread(target=self._ask, daemon=True)  # nobody waits for it at the end
        self._thread.start()

    def wait(self, seconds: float) -> tuple[RecordFact | None, str]:
        """What it says, or why that is not known."""
        self._thread.join(seconds)
        return (self._record, "") if self._record else (None, self._unread)

    def _ask(self) -> None:
        try:
            record = typed(_Told, self._text()).record
            words: Record = {key: self._here(value) for key, value in asdict(record).items()}
            self._record = RecordFact(**words)
        except StokerError as e:
            self._unread = str(e)
        except ValueError as e:
            self._unread = f"another version of Stoker wrote them ({e})"

    def _text(self) -> str:
        live = self._there.live()
        if not live and self._ended:
            return "".join(self._there.ask("why", "--facts"))
        wrong = Cut("none of its pods is up")
        for pod in live[:TRIED]:
            try:
                return "".join(self._there.ask_pod(pod, "why", "--facts"))
            except Cut as e:
                wrong = e
        raise StokerError(str(wrong), remedy="")

    def _here(self, value: object) -> object:
        """In a pod the run's folder has another name."""
        folder = f"{contract.MOUNT}/{contract.VOLUME_RUNS}/{self._place.run}"
        return value.replace(folder, self._run.name) if isinstance(value, str) else value
