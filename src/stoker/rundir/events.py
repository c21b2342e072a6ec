"""What happens to a run: one class per kind of event, with the sentence that describes it.

events.jsonl holds one event per line: `time`, `kind`, `rank`, `host`, and the fields of its kind. A kind that is not
known here, or one with a missing field, was written by another version: it is read as an `UnknownEvent`, which shows
all its fields.
"""

from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, Any, ClassVar

from pydantic import Field

from stoker.rundir.records import Count, Record, Seconds, Workers, has_time, typed_fields
from stoker.spec.derive import ShortSchedule
from stoker.spec.units import short_number

HEAD = ("time", "kind", "rank", "host")
MAX_NODES_SHOWN = 8


@dataclass(kw_only=True, slots=True)
class Event:
    """`time`, `rank` and `host` are filled in when the event is written."""

    kind: ClassVar[str]

    time: Seconds = 0.0
    rank: Count | None = None
    host: str = ""

    @property
    def sentence(self) -> str:
        raise NotImplementedError

    def record(self) -> Record:
        """As it is written to events.jsonl."""
        return {"time": self.time, "kind": self.kind, "rank": self.rank, "host": self.host} | self.fields()

    def fields(self) -> Record:
        """The fields of its kind, without those that all events have."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name not in HEAD}


@dataclass(kw_only=True, slots=True)
class UnknownEvent(Event):
    """Written by another version of Stoker."""

    kind = ""
    name: str
    """Its kind."""
    values: Record

    @property
    def sentence(self) -> str:
        values = "  ".join(f"{key}={value}" for key, value in self.values.items())
        return f"{self.name}: {values}" if values else self.name

    def record(self) -> Record:
        return {"time": self.time, "kind": self.name, "rank": self.rank, "host": self.host} | self.values


@dataclass(kw_only=True, slots=True)
class Note(Event):
    kind = "note"
    text: str

    @property
    def sentence(self) -> str:
        return self.text


@dataclass(kw_only=True, slots=True)
class GaveUp(Event):
    """Supervisors were killed repeatedly, so the run is not restarted."""

    kind = "gave up"
    text: str

    @property
    def sentence(self) -> str:
        return self.text


@dataclass(kw_only=True, slots=True)
class ClusterEvent(Event):
    """An event that the cluster reports about an object of the run. Not in events.jsonl."""

    kind = "cluster"
    object: str
    reason: str
    text: str
    warning: bool
    times: Count

    @property
    def sentence(self) -> str:
        count = f" ({self.times} times)" if self.times > 1 else ""
        return f"{self.object}: {self.reason}: {self.text}{count}"


@dataclass(kw_only=True, slots=True)
class World(Event):
    """An attempt starts with these workers."""

    kind = "world"
    attempt: Count
    workers: Workers
    restart: Count = 0
    """Number of earlier attempts of this supervisor."""
    nodes: list[Record] = field(default_factory=list)
    """For a run on several nodes: the ranks of each."""

    @property
    def sentence(self) -> str:
        nodes = f" on {_count(len(self.nodes), 'node')}" if self.nodes else ""
        return f"attempt {self.attempt} with {_count(self.workers, 'worker')}{nodes}"


@dataclass(kw_only=True, slots=True)
class Started(Event):
    """The trainer is ready and starts training."""

    kind = "started"
    attempt: Count = 0
    step: Count = 0
    world: Workers = 0
    chip: str
    torch: str = ""
    accumulation: Count = 1
    parameters: Count
    steps: Count | None = None
    positions: Count | None = None
    tokens_per_step: Count = 0
    horizon: Count | None = None
    warmup: Count | None = None
    decay: Count | None = None
    precision: str | None = None
    compile: bool | None = None
    micro: Count | None = None

    @property
    def sentence(self) -> str:
        end = f"until step {self.steps:,}" if self.steps else "until its time limit"
        return f"training on {self.chip}, {short_number(self.parameters)} parameters, {end}"


@dataclass(kw_only=True, slots=True)
class ScheduleEnds(Event):
    """The learning rate reaches its end before the run does."""

    kind = "short schedule"
    end: Count
    rate: float
    steps: Count | None
    horizon: Count

    @property
    def sentence(self) -> str:
        return str(ShortSchedule(end=self.end, rate=self.rate, steps=self.steps, horizon=self.horizon))


@dataclass(kw_only=True, slots=True)
class Changed(Event):
    """The run is resumed with other settings: key -> [before, after]."""

    kind = "changed"
    changes: dict[str, Annotated[list[Any], Field(min_length=2, max_length=2)]]

    @property
    def sentence(self) -> str:
        return "changed " + ", ".join(f"{key}: {old} -> {new}" for key, (old, new) in self.changes.items())


@dataclass(kw_only=True, slots=True)
class Imported(Event):
    kind = "imported"
    step: Count
    source: str

    @property
    def sentence(self) -> str:
        return f"imported the weights of {self.source}"


@dataclass(kw_only=True, slots=True)
class Stopping(Event):
    kind = "stopping"
    signal: str

    @property
    def sentence(self) -> str:
        return f"asked to save and stop ({self.signal})"


@dataclass(kw_only=True, slots=True)
class Failed(Event):
    """A worker failed: the one of `rank`."""

    kind = "failed"
    code: int | None
    signal: str | None
    line: str = ""
    """The last line that it printed."""
    again: bool
    """The run is started again."""
    script: bool = False

    @property
    def sentence(self) -> str:
        how = f"was killed by {self.signal}" if self.signal else f"exited with code {self.code}"
        source = "" if self.script else " from the last checkpoint"
        return f"worker {self.rank} {how}" + (f"; restarting{source}" if self.again else "")


@dataclass(kw_only=True, slots=True)
class WaitingForNodes(Event):
    kind = "waiting for nodes"
    joined: list[Count]
    missing: list[Count]
    least: Count
    most: Count

    @property
    def sentence(self) -> str:
        shown = ", ".join(map(str, self.missing[:MAX_NODES_SHOWN]))
        if len(self.missing) > MAX_NODES_SHOWN:
            shown += f" and {len(self.missing) - MAX_NODES_SHOWN} more"
        needed = str(self.most) if self.least == self.most else f"{self.least}..{self.most}"
        return f"waiting for node {shown}: {len(self.joined)} of {needed} are up"


@dataclass(kw_only=True, slots=True)
class Regrouping(Event):
    kind = "regrouping"
    reason: str

    @property
    def sentence(self) -> str:
        return f"asked to save, then resumes with other nodes: {self.reason}"


@dataclass(kw_only=True, slots=True)
class RunScaled(Event):
    kind = "scaled"
    nodes: str
    was: str

    @property
    def sentence(self) -> str:
        return f"scaled from {self.was} to {self.nodes} node{'s' * (self.nodes != '1')}"


@dataclass(kw_only=True, slots=True)
class NodeLost(Event):
    """A node stopped answering. `host` is the node's."""

    kind = "lost"
    node: Count
    pod: str | None = None

    @property
    def sentence(self) -> str:
        return f"node {self.node} ({f'pod {self.pod}' if self.pod else self.host}) was lost"


@dataclass(kw_only=True, slots=True)
class NodeLeft(Event):
    """A node left on request. `host` is the node's."""

    kind = "left"
    node: Count
    pod: str | None = None

    @property
    def sentence(self) -> str:
        return f"node {self.node} ({f'pod {self.pod}' if self.pod else self.host}) has left"


@dataclass(kw_only=True, slots=True)
class Resumed(Event):
    kind = "resumed"
    step: Count
    attempt: Count = 0

    @property
    def sentence(self) -> str:
        return f"resumed at step {self.step}"


@dataclass(kw_only=True, slots=True)
class WaitingForData(Event):
    kind = "waiting"
    step: Count

    @property
    def sentence(self) -> str:
        return f"step {self.step} waits for its data, which is still being prepared"


@dataclass(kw_only=True, slots=True)
class CheckpointSaved(Event):
    kind = "checkpoint"
    step: Count
    seconds: float = 0.0
    resume: Any = None

    @property
    def sentence(self) -> str:
        return f"saved step {self.step} in {self.seconds:.1f} s"


@dataclass(kw_only=True, slots=True)
class CheckpointFailed(Event):
    kind = "checkpoint failed"
    step: Count
    reason: str

    @property
    def sentence(self) -> str:
        return f"the checkpoint of step {self.step} could not be saved: {self.reason}"


@dataclass(kw_only=True, slots=True)
class Fallback(Event):
    """A damaged checkpoint was skipped."""

    kind = "fallback"
    step: Count
    reason: str

    @property
    def sentence(self) -> str:
        return f"the checkpoint of step {self.step} is damaged ({self.reason}); the one before it is used"


@dataclass(kw_only=True, slots=True)
class StepSkipped(Event):
    kind = "skipped"
    step: Count
    loss_scale: float | None = None

    @property
    def sentence(self) -> str:
        return f"step {self.step} was skipped: its gradients were not finite"


@dataclass(kw_only=True, slots=True)
class Sample(Event):
    kind = "sample"
    step: Count
    text: str

    @property
    def sentence(self) -> str:
        return f"after step {self.step} the model writes: {self.text}"


@dataclass(kw_only=True, slots=True)
class Paused(Event):
    kind = "paused"
    step: Count
    reason: str

    @property
    def sentence(self) -> str:
        return f"paused at step {self.step}: {self.reason}"


@dataclass(kw_only=True, slots=True)
class Finished(Event):
    kind = "finished"
    step: Count
    reason: str

    @property
    def sentence(self) -> str:
        return f"finished at step {self.step}: {self.reason}"


EVENTS: dict[str, type[Event]] = {
    event.kind: event
    for event in (
        Note, GaveUp, ClusterEvent, World, Started, ScheduleEnds, Changed, Imported, Stopping, Failed, WaitingForNodes,
        Regrouping, RunScaled, NodeLost, NodeLeft, Resumed, WaitingForData, CheckpointSaved, CheckpointFailed, Fallback,
        StepSkipped, Sample, Paused, Finished,
    )
}  # fmt: skip

FIELDS = {
    event.kind: (
        [item.name for item in fields(event)],
        {item.name for item in fields(event) if item.default is MISSING and item.default_factory is MISSING},
    )
    for event in EVENTS.values()
}
"""For each kind: all its fields, and those without a default."""


def parse_event(record: Record) -> Event | None:
    """None when it is not an event, or a field of it has another type."""
    if not has_time(record) or type(record.get("kind")) is not str:
        return None
    names, needed = FIELDS.get(record["kind"], ([], set()))
    if names and needed <= record.keys():
        kind, values = EVENTS[record["kind"]], {name: record[name] for name in names if name in record}
    else:
        own = {key: value for key, value in record.items() if key not in HEAD}
        kind, values = UnknownEvent, {key: record[key] for key in ("time", "rank", "host") if key in record}
        values |= {"name": record["kind"], "values": own}
    try:
        return typed_fields(kind, values)
    except ValueError:
        return None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
