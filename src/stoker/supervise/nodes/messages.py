"""The messages between the leader and its followers: one class per kind.

A follower connects and sends its `Node`. The leader answers `Accepted`, or disconnects.
"""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeVar

from stoker.rundir.records import typed_value
from stoker.supervise.workers.environment import RankAssignment
from stoker.supervise.workers.exit import WorkerExit

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepted:
    """The leader: the node has joined the run."""

    kind: ClassVar[str] = "accepted"


@dataclass(frozen=True, kw_only=True, slots=True)
class StartWorkers:
    """The leader: an attempt starts, and these are the node's ranks."""

    kind: ClassVar[str] = "start workers"
    assignment: RankAssignment


@dataclass(frozen=True, kw_only=True, slots=True)
class TerminateWorkers:
    """The leader: ask the workers to save and exit."""

    kind: ClassVar[str] = "terminate workers"


@dataclass(frozen=True, kw_only=True, slots=True)
class KillWorkers:
    kind: ClassVar[str] = "kill workers"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEnded:
    """The leader: exit with the run's exit code."""

    kind: ClassVar[str] = "run ended"
    code: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerEnded:
    """A follower: one of its workers has ended, with this return code."""

    kind: ClassVar[str] = "worker ended"
    attempt: int
    rank: int
    code: int
    exit: WorkerExit


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeLeaving:
    """A follower: it was asked to stop, and asks its workers to save and exit."""

    kind: ClassVar[str] = "node leaving"


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeNote:
    """A follower: a note for the run's events."""

    kind: ClassVar[str] = "note"
    text: str


LeaderMessage = Accepted | StartWorkers | TerminateWorkers | KillWorkers | RunEnded
FollowerMessage = WorkerEnded | NodeLeaving | NodeNote
FROM_LEADER: dict[str, type[LeaderMessage]] = {
    message.kind: message for message in (Accepted, StartWorkers, TerminateWorkers, KillWorkers, RunEnded)
}
FROM_FOLLOWER: dict[str, type[FollowerMessage]] = {
    message.kind: message for message in (WorkerEnded, NodeLeaving, NodeNote)
}


def encode(message: LeaderMessage | FollowerMessage) -> dict[str, Any]:
    return {"kind": message.kind} | asdict(message)


def parse_leader_message(record: dict[str, Any]) -> LeaderMessage | None:
    """None for a kind that is not known here. Raises ValueError."""
    return _parse(record, FROM_LEADER)


def parse_follower_message(record: dict[str, Any]) -> FollowerMessage | None:
    """None for a kind that is not known here. Raises ValueError."""
    return _parse(record, FROM_FOLLOWER)


def _parse(record: dict[str, Any], kinds: dict[str, type[T]]) -> T | None:
    name = record.get("kind")
    if not isinstance(name, str):
        raise ValueError("the message has no kind")
    kind = kinds.get(name)
    return typed_value(kind, {key: value for key, value in record.items() if key != "kind"}) if kind else None
