"""A run directory on a volume, read by a pod that mounts it: a live pod of the run, else a reader."""

import json
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, TypeVar

from stoker import __version__
from stoker.backends.kubernetes.jobs import job_kind
from stoker.backends.kubernetes.needs import needs
from stoker.backends.kubernetes.place import ClusterPlace
from stoker.backends.kubernetes.state import is_up
from stoker.backends.kubernetes.volume import fetch, reader
from stoker.backends.kubernetes.volume.execution import Execution, check
from stoker.backends.kubernetes.volume.in_pod import ERROR, ERRORS
from stoker.backends.transfer.frames import PeerLost
from stoker.backends.transfer.meter import TransferProgress
from stoker.kube import Cluster, ConnectionLost, Forbidden, Object, Refused, Unreachable, connect
from stoker.rundir import RunDir, consent
from stoker.rundir.records import typed
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.trust import is_trusted, trusting

PYTHON = ("python3", "-P")
IN_POD = "stoker.backends.kubernetes.volume.in_pod"
IN_RUN = 'cd "$0" 2>/dev/null || cd "$(dirname "$(dirname "$0")")"; exec "$@"'  # without a run directory: the volume
T = TypeVar("T")
MAX_LIVE = 5  # pods that are tried before a reader is created
MAX_LIVE_FAST = 2  # the same for `ps`, `status` and `why`


class NoPodAnswers(UserError):
    """No pod of the run can read its volume, and no reader can be created."""


class VolumeRun:
    """The run directory on a volume, read through a pod. `moving`: in a separate pod, for copies that take hours."""

    root = contract.MOUNT

    def __init__(
        self, run: RunDir, place: ClusterPlace, *, cluster: Cluster | None = None, moving: bool = False
    ) -> None:
        self.place = place
        self.cluster = cluster or connect(place.context, place.namespace)
        self._run, self._spec = run, run.any_spec()
        self._trusted = is_trusted()  # kept, because other threads ask for it
        self._kind = reader.MOVER if moving else reader.READER

    @property
    def folder(self) -> str:
        """The run directory, in a pod."""
        return self.place.folder

    @property
    def workers(self) -> int:
        """On each node."""
        return needs(self._spec, self.place.run).workers

    @property
    def container(self) -> str:
        """In its pods and in readers."""
        return job_kind(self.place.job).CONTAINER

    def connect(self, argv: Sequence[str]) -> Execution:
        """Start `python3 …` in a pod. Raises PeerLost if that pod is lost meanwhile."""
        try:
            return self.execute(self.pods()[0], [*PYTHON, *argv])
        except (ConnectionLost, Unreachable) as e:
            raise PeerLost(e.problem) from e

    def execute(self, pod: str, argv: Sequence[str]) -> Execution:
        return Execution(self.cluster, pod, argv, container=self.container, image=self.place.image)

    def ask(self, verb: str, **options: object) -> Iterator[str]:
        """The values that `in_pod` prints for that verb, as JSON. An error that it reports is raised here."""
        return self.program(verb, *self._in_pod(verb, options))

    def ask_live(self, verb: str, *, create_reader: bool) -> list[str]:
        """The same from a live pod, or with `create_reader` from a reader if no pod of the run is up."""
        live = self.live()[:MAX_LIVE_FAST]
        if not live and create_reader:
            return list(self.ask(verb))
        error: PeerLost | None = None
        for pod in live:
            try:
                return list(self.ask_pod(pod, verb))
            except PeerLost as e:
                error = e
        raise NoPodAnswers(f"none of its pods answers ({error})" if error else "none of its pods is up", remedy="")

    def ask_pod(self, pod: str, verb: str, **options: object) -> Iterator[str]:
        return self._lines(pod, verb, *self._in_pod(verb, options))

    def program(self, verb: str, *argv: str) -> Iterator[str]:
        """The lines that `python3 …` prints in a pod."""
        error: PeerLost | None = None
        for pod in [*self.live(), None]:
            started = False
            try:
                for line in self._lines(pod or self._create_reader(), verb, *argv):
                    started = True
                    yield line
                return
            except PeerLost as e:
                if started:
                    raise ConnectionLost(f"the connection broke off ({e})", remedy="Run it again") from e
                error = e
        raise NoPodAnswers(f"no pod can read the volume of run '{self.place.run}' ({error})", remedy="Try again")

    def _in_pod(self, verb: str, options: dict[str, object]) -> tuple[str, ...]:
        return ("-m", IN_POD, verb, self.folder, json.dumps(options))

    def _lines(self, pod: str, verb: str, *argv: str) -> Iterator[str]:
        command = self.execute(pod, [*PYTHON, *argv])
        try:
            for line in command.lines():
                if line.startswith(ERROR):
                    report = self.parse_reply(_ErrorReport, line.removeprefix(ERROR))
                    raise ERRORS.get(report.kind, UserError)(report.problem, remedy=report.remedy)
                yield line
        finally:
            command.close()
        check(command, verb)

    def parse_reply(self, kind: type[T], text: str) -> T:
        """A value that Stoker printed in a pod as JSON. Raises UserError if its version differs."""
        try:
            return typed(kind, text)
        except ValueError as e:
            raise UserError(
                f"the image {self.place.image} has another version of Stoker than this machine, {__version__}, "
                "and its answer cannot be read",
                remedy="Use that version here, or resume the run with an image of this one: stoker launch",
            ) from e

    def localized(self, text: str) -> str:
        """A message from a pod, with the run's name instead of its folder in the pod."""
        return text.replace(self.folder, self._run.name)

    def pods(self) -> list[str]:
        """Pods that mount the volume; a reader is created if there is none."""
        live = [] if self._kind == reader.MOVER else self.live()
        return live or [self.make()]

    def live(self, most: int = MAX_LIVE) -> list[str]:
        """Running pods of the run, up to a limit, in the order of their nodes."""
        pods = self.cluster.list(
            "Pod", labels={contract.LABEL_RUN: self.place.run}, fields={"status.phase": "Running"}, limit=4 * most
        )
        node = job_kind(self.place.job).node
        up = sorted((node(pod) or 0, pod["metadata"]["name"]) for pod in pods if is_up(pod))
        return [name for _, name in up[:most]]

    def _create_reader(self) -> str:
        try:
            return self.make()
        except Forbidden:
            raise
        except (reader.PodCannotStart, consent.NotTrusted, Refused) as e:
            raise NoPodAnswers(e.problem, remedy=e.remedy) from e

    def make(self) -> str:
        self._require_trust()
        return reader.ensure(self.cluster, self._reader())

    def path(self, path: str) -> str:
        """The full path: a path that starts with / is relative to the volume, any other to the run directory."""
        return path.lstrip("/") if path.startswith("/") else f"{contract.VOLUME_RUNS}/{self.place.run}/{path}"

    def fetch(
        self, url: str, into: str, options: Sequence[str], progress: Callable[[TransferProgress], None]
    ) -> TransferProgress:
        return fetch.fetch(self, url, into, options, progress)

    def close(self) -> None:
        """Delete the reader."""
        self.cluster.delete("Pod", self._reader()["metadata"]["name"], grace=0)

    def shell(
        self,
        argv: Sequence[str],
        *,
        stdin: BinaryIO | None,
        stdout: BinaryIO,
        stderr: BinaryIO | None,
        terminal: Callable[[], tuple[int, int]] | None,
    ) -> int:
        """In a pod of its own, which is deleted afterwards."""
        self._require_trust()
        name = f"{self.place.run}-{reader.SHELL}-{secrets.token_hex(2)}"
        environment = ["env", f"TERM={os.environ.get('TERM', 'xterm')}"] if terminal else []
        command = [*environment, "sh", "-c", IN_RUN, self.folder, *argv]
        try:
            try:
                pod = reader.ensure(self.cluster, self._pod(name, reader.SHELL))
            except PeerLost as e:
                raise UserError(str(e), remedy="Try again") from e
            return self.cluster.exec(
                pod, command, container=self.container, stdin=stdin, stdout=stdout, stderr=stderr, tty=terminal
            )
        finally:
            self.cluster.delete("Pod", name, grace=0)

    def _require_trust(self) -> None:
        """A pod is created only from an image that the user has trusted for this run."""
        with trusting(self._trusted):
            consent.require_image(self._run, self.place.image)

    def _reader(self) -> Object:
        pod = self._pod(f"{self.place.run}-{self._kind}", self._kind)
        return reader.shared(pod) if self._kind == reader.READER else pod

    def _pod(self, name: str, kind: str) -> Object:
        return reader.reader_pod(self.place, self._spec, name=name, kind=kind)


@dataclass(frozen=True, kw_only=True, slots=True)
class _ErrorReport:
    """An error, as `in_pod` prints it."""

    kind: str
    problem: str
    remedy: str
