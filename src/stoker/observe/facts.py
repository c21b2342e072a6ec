"""What is known of a run when somebody asks why: plain values that the rules are laid over, and that JSON can carry."""

from dataclasses import dataclass

UNKNOWN = ""  # in the place of a word that nobody could or may tell


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFact:
    """The run as a whole. What stands here can be said in every rule."""

    run: str
    """As it is called on the command line."""
    state: str
    away: bool = False
    """It lives in a cluster."""
    again: str
    """The command that starts it again, with an end before where it needs one; words may follow."""
    kubectl: str = "kubectl"
    """With its context and namespace."""
    anywhere: str = "kubectl"
    """With its context alone."""
    namespace: str = ""
    ending: bool = False
    """Its namespace is being deleted."""
    kind: str = ""
    """Of what carries its pods."""
    object: str = ""
    """That kind and its name, as kubectl takes them."""
    served: bool = True
    """The cluster knows that kind."""
    install: str = ""
    """The command that brings it."""
    there: bool = True
    """What carries its pods is there."""
    leaving: bool = False
    """It is being deleted."""
    suspended: bool = False
    resume: str = ""
    """The command that lets a suspended one go on."""
    queue: str = ""
    """Kueue's, which suspends it until there is room."""
    blamed: str = ""
    """The reason that the job itself gives for its failure."""
    complaint: str = ""
    """The same in its own words."""
    missing: int = 0
    """Pods that it should have and has not."""
    nodes: int = 1
    volume: str = ""
    image: str = ""
    opened: str = ""
    """Words for `launch`: its image secrets, and one more called NAME."""
    pulled: str = ""
    """The same: on.pod, without an imagePullPolicy."""
    demoted: str = ""
    """The same: on.pod, with a user that is not root."""
    processors: str = ""
    """The same: on.selectors, with nodes of the processors ARCH."""
    fewer: str = "on.nodes=N"
    """The same: fewer nodes than it asks for, any number of them where it may have a range; empty where one will do."""
    less: str = "on.nodes=N"
    """The same: fewer nodes, or where it has one, less of that."""
    micro: str = ""
    """The same: one sequence at a time; empty where that is so already, or the script's own affair."""
    kept: str = ""
    """The same: one checkpoint; empty where that is so already, or the script's own affair."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordFact:
    """What the run has written down itself, as far as it still holds."""

    reason: str = ""
    """Why it ended, in its own words."""
    advice: str = ""
    failing: bool = False
    """A worker has crashed, and no step was logged since."""
    rank: int | None = None
    """Of the worker that crashed first."""
    signal: str = ""
    error: str = ""
    """The last error in that worker's own log."""
    symptom: bool = False
    """That is a broken connection: another worker failed, and none printed an error of its own."""
    crashes: int = 0
    """In a row."""
    waits_for: str = ""
    """Nodes that the others wait for."""
    here: int = 0
    needed: str = ""
    lost: str = ""
    """A node that was lost, and is waited for."""
    starved: int | None = None
    """The step that waits for its data."""
    unsaved: str = ""
    """Why the last checkpoint could not be saved."""
    damaged: str = ""
    """Why a checkpoint could not be read."""
    full: bool = False
    """There is no room on its disk."""
    place: str = ""
    """Where the run directory is."""
    silent: float = 0.0
    """Seconds since the last logged step."""
    usual: float | None = None
    """Seconds between two of them, as a rule."""
    stall: float = 0.0
    """How many times longer than usual the silence is."""
    data_wait: float = 0.0
    """Percent of the time that go by waiting for data, lately."""
    pace: float = 100.0
    """The speed lately, in percent of what it was."""
    address: str = ""
    """Where the node that leads listens."""
    port: int = 0
    leader: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PodFact:
    """The newest pod of one node of the run."""

    pod: str
    node: int | None = None
    machine: str = ""
    machine_state: str = UNKNOWN
    """ready, lost (not ready, or not heard of) or gone."""
    image: str = ""
    """Of its container, or of the one that it waits for."""
    part: str = ""
    """The container that it waits for or that failed, where that is not the run's own."""
    init: bool = False
    """That one runs before the run's own."""
    injected: bool = False
    """The run does not name it: an operator or a webhook of the cluster has added it."""
    init_code: int | None = None
    """That it failed with."""
    phase: str = ""
    alive: bool = False
    """One of its containers runs."""
    up: float = 0.0
    """Seconds that it runs."""
    waited: float = 0.0
    """Seconds since it was made."""
    unscheduled: str = ""
    """What the scheduler says."""
    scheduler: str = ""
    seen: bool = True
    """A scheduler has looked at it."""
    obstacle: str = ""
    """What keeps it from every node: selector, avoided, taint, cordon, sick, size, room."""
    lacks: str = ""
    """The label, the taint or the resource that it is about."""
    asked: str = ""
    most: str = ""
    """How much of that the largest node has."""
    mend: str = ""
    """Words for `stoker launch` that make it fit; for a label that the run names itself, those for `kubectl label`."""
    example: str = ""
    """A node that it is about."""
    waiting: str = ""
    """Why its container does not start."""
    said: str = ""
    ended: str = ""
    """How its container ended, or that of the pod before it, when this one has not come further yet."""
    code: int | None = None
    fell: str = ""
    """The pod that ended so: this one, or the one before it."""
    limit: str = ""
    """Of its memory."""
    more: str = ""
    """Twice that, or what a node has."""
    reason: str = ""
    """Why the cluster ended it."""
    disrupted: str = ""
    overdue: float | None = None
    """Seconds after which it should have been gone; before that they are negative."""
    held: str = ""
    """Finalizers that keep it from going; not that of the job, which takes it away by itself."""
    first: bool = False
    """Of those that failed it was the first, and not for another's sake."""
    words: str = ""
    """The last error in its log."""
    symptom: bool = False
    """Like all that failed, it failed because another had, and nothing is left of that one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EventFact:
    """What the cluster warns of, while it still matters: about a pod that waits, or a job that lacks pods."""

    about: str
    """The kind of object."""
    name: str
    reason: str
    said: str
    waiting: str = ""
    """Why the container of the pod that it is about does not start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimFact:
    claim: str
    state: str
    """Bound, Pending, Lost or missing."""
    storage_class: str = ""
    """Named by the claim, or the cluster's own."""
    class_state: str = UNKNOWN
    """there, missing, or none: neither the claim nor the cluster names one."""
    classes: str = ""
    """Those that are there."""
    late: bool = False
    """Its class binds it only once a node is found for a pod that names it."""
    said: str = ""
    """What its provisioner complains of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ControllerFact:
    """What makes pods of its job."""

    controller: str
    home: str
    wanted: int
    ready: int


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueFact:
    queue: str
    state: str
    """Open, Closed, missing, full, or the cluster has nothing that serves it: none."""
    said: str = ""
    known: str = ""
    """Queues that are there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HookFact:
    """A webhook that cannot be called, and keeps pods from being made."""

    hook: str
    setting: str
    """The object that names it, as kubectl takes it."""
    said: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkFact:
    """A node that is up and not with the others: how it sees the one that leads."""

    node: int
    pod: str
    leader: str
    address: str
    port: int
    answer: str
    """open, refused, silent (nothing came back) or unreachable."""
    names: str
    """ok, or broken: whether names are resolved there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    run: RunFact
    record: RecordFact | None = None
    unread: str = ""
    """Why what the run wrote down could not be read."""
    pods: tuple[PodFact, ...] = ()
    events: tuple[EventFact, ...] = ()
    claims: tuple[ClaimFact, ...] = ()
    controllers: tuple[ControllerFact, ...] = ()
    queues: tuple[QueueFact, ...] = ()
    hooks: tuple[HookFact, ...] = ()
    links: tuple[LinkFact, ...] = ()
