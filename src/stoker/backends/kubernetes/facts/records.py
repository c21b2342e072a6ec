"""The records of a run on its volume, read in the background with a timeout."""

import threading
from dataclasses import asdict

from stoker.backends.kubernetes.place import ClusterPlace
from stoker.backends.kubernetes.volume.remote import VolumeRun
from stoker.diagnose.facts import RecordFact
from stoker.kube import Cluster
from stoker.rundir import Record, RunDir
from stoker.rundir.records import typed
from stoker.spec.errors import StokerError


class RecordsRequest:
    """Asks a live pod of the run, or a reader if all pods have `ended`."""

    def __init__(self, run: RunDir, place: ClusterPlace, cluster: Cluster, *, ended: bool) -> None:
        self._remote, self._ended = VolumeRun(run, place, cluster=cluster), ended
        self._record: RecordFact | None = None
        self._unread = "it takes too long"
        self._thread = threading.Thread(target=self._ask, daemon=True)  # a daemon, so that it does not delay the exit
        self._thread.start()

    def wait(self, timeout_s: float) -> tuple[RecordFact | None, str]:
        """The record, or why it cannot be read."""
        self._thread.join(timeout_s)
        return (self._record, "") if self._record else (None, self._unread)

    def _ask(self) -> None:
        try:
            lines = self._remote.ask_live("facts", create_reader=self._ended)
            record = typed(RecordFact, "".join(lines))
            values: Record = {key: self._localized(value) for key, value in asdict(record).items()}
            self._record = RecordFact(**values)
        except StokerError as e:
            self._unread = str(e)
        except ValueError as e:
            self._unread = f"another version of Stoker wrote them ({e})"

    def _localized(self, value: object) -> object:
        return self._remote.localized(value) if isinstance(value, str) else value
