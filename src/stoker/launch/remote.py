"""A run directory on a volume, through a pod that sees it: a live one of the run, else a reader."""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from stoker import __version__
from stoker.kube import Cluster, Forbidden, Lost, Object, Unreachable, connect
from stoker.launch import reader
from stoker.launch.execution import Execution, last_line
from stoker.launch.jobs import job_kind
from stoker.launch.needs import needs
from stoker.launch.transfer.frames import Cut
from stoker.rundir import PlaceRef, RunDir, consent
from stoker.rundir.records import typed
from stoker.spec import contract
from stoker.spec.errors import RunFailed, SavedForLater, StokerError, UserError
from stoker.spec.trust import is_trusted, trusting

PYTHON = ("python3", "-P")
T = TypeVar("T")
KILLED = 128  # and the number of the signal
FEW = 5  # live pods that are tried before a reader is made


class Unseen(UserError):
    """No pod can see the volume, and none can be made that would."""


class Remote:
    """`moving`: bytes are carried for hours, so a pod of its own is better than a worker's."""

    root = contract.MOUNT

    def __init__(self, run: RunDir, ref: PlaceRef, *, cluster: Cluster | None = None, moving: bool = False) -> None:
        self.ref = ref
        self.cluster = cluster or connect(ref.context, ref.namespace)
        self._run, self._spec = run, run.any_spec()
        self._trusted = is_trusted()  # asked for in threads, too
        self._kind = reader.MOVER if moving else reader.READER

    @property
    def folder(self) -> str:
        """The run directory, in a pod."""
        return f"{contract.MOUNT}/{contract.VOLUME_RUNS}/{self.ref.run}"

    @property
    def workers(self) -> int:
        """On each node."""
        return needs(self._spec, self.ref.run).workers

    @property
    def container(self) -> str:
        """Of its pods, ours for reading too."""
        return job_kind(self.ref.job).CONTAINER

    def connect(self, argv: Sequence[str]) -> Execution:
        """Start `python3 …` in a pod. Raises Cut when that pod is gone meanwhile."""
        try:
            return self.execute(self.pods()[0], [*PYTHON, *argv])
        except (Lost, Unreachable) as e:
            raise Cut(e.problem) from e

    def execute(self, pod: str, argv: Sequence[str]) -> Execution:
        return Execution(self.cluster, pod, argv, container=self.container, image=self.ref.image)

    def ask(self, verb: str, *words: str) -> Iterator[str]:
        """The lines that `stoker VERB RUN …` prints there. What it complains of is raised here."""
        return self.program(verb, "-m", "stoker", verb, self.folder, *words)

    def program(self, verb: str, *argv: str) -> Iterator[str]:
        """The lines that `python3 …` prints there for that verb."""
        wrong: Cut | None = None
        for pod in [*self.live(), None]:
            told = False
            try:
                for line in self._lines(pod or self._seeing(), verb, *argv):
                    told = True
                    yield line
                return
            except Cut as e:
                if told:
                    raise Lost(f"the connection broke off ({e})", remedy="Run it again") from e
                wrong = e
        raise Unseen(f"no pod can read the volume of run '{self.ref.run}' ({wrong})", remedy="Try again")

    def ask_pod(self, pod: str, verb: str, *words: str) -> Iterator[str]:
        return self._lines(pod, verb, "-m", "stoker", verb, self.folder, *words)

    def _lines(self, pod: str, verb: str, *argv: str) -> Iterator[str]:
        command = self.execute(pod, [*PYTHON, *argv])
        try:
            yield from command.lines()
        finally:
            command.close()
        check(command, verb)

    def understood(self, kind: type[T], text: str) -> T:
        """What Stoker prints there as JSON, as the same thing here."""
        try:
            return typed(kind, text)
        except ValueError as e:
            raise UserError(
                f"the Stoker of image {self.ref.image} is of another version than this one, {__version__}, "
                "and what it says is not understood",
                remedy="Use that version here, or go on with the run with an image of this one: stoker launch",
            ) from e

    def pods(self) -> list[str]:
        """Those that see the volume; one is made when there is none."""
        live = [] if self._kind == reader.MOVER else self.live()
        return live or [self.make()]

    def live(self, most: int = FEW) -> list[str]:
        """Pods of the run that are up, in the order of their nodes; no more than so many."""
        found = self.cluster.list(
            "Pod", labels={contract.LABEL_RUN: self.ref.run}, fields={"status.phase": "Running"}, limit=4 * most
        )
        node = job_kind(self.ref.job).node
        up = sorted((node(pod) or 0, pod["metadata"]["name"]) for pod in found if reader.runs(pod))
        return [name for _, name in up[:most]]

    def _seeing(self) -> str:
        try:
            return self.make()
        except (Forbidden, Unreachable):
            raise
        except UserError as e:
            raise Unseen(e.problem, remedy=e.remedy) from e

    def make(self) -> str:
        self._require()
        return reader.ensure(self.cluster, self._helper())

    def remove(self) -> None:
        """The pod that was made for this."""
        self.cluster.delete("Pod", self._helper()["metadata"]["name"], grace=0)

    @contextmanager
    def shell(self) -> Iterator[str]:
        """A pod of its own, gone afterwards."""
        self._require()
        name = f"{self.ref.run}-{reader.SHELL}-{secrets.token_hex(2)}"
        try:
            try:
                pod = reader.ensure(self.cluster, self._pod(name, reader.SHELL))
            except Cut as e:
                raise UserError(str(e), remedy="Try again") from e
            yield pod
        finally:
            self.cluster.delete("Pod", name, grace=0)

    def _require(self) -> None:
        """A pod is made only of an image that the user has trusted for this run."""
        with trusting(self._trusted):
            consent.require_pods(self._run, self.ref)

    def _helper(self) -> Object:
        pod = self._pod(f"{self.ref.run}-{self._kind}", self._kind)
        return reader.shared(pod) if self._kind == reader.READER else pod

    def _pod(self, name: str, kind: str) -> Object:
        return reader.reader_pod(self.ref, self._spec, name=name, kind=kind)


def check(command: Execution, verb: str) -> None:
    """Of a command that has ended. Raises what it complains of, or Cut when it was killed."""
    if not command.code:
        return
    if command.code >= KILLED:
        raise Cut(f"it was killed in pod {command.pod}, with code {command.code}")
    raise _complaint(command, verb)


def _complaint(command: Execution, verb: str) -> StokerError:
    """The same one line that it would be here."""
    line = last_line(command.stderr).removeprefix("stoker: ")
    if command.code == contract.EXIT_FAILED:
        return RunFailed(line, remedy="")
    if command.code == contract.EXIT_SAVED:
        return SavedForLater(line, remedy="")
    if command.code == contract.EXIT_USER:
        return UserError(line, remedy="")
    return UserError(
        f"stoker {verb} in pod {command.pod} ended with code {command.code}: {line}",
        remedy="Try again, or look into it",
    )
