"""What is known about a run for `stoker why`: plain values for the rules, which JSON can hold."""

from dataclasses import dataclass

UNKNOWN = ""  # for a state that could not, or may not, be read


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFact:
    """The run as a whole. Every rule can use these fields."""

    run: str
    """As it is named on the command line."""
    state: str
    in_cluster: bool = False
    relaunch: str
    """The command that starts it again, after `stoker stop` where that is needed; overrides may follow."""
    kubectl: str = "kubectl"
    """With its context and namespace."""
    kubectl_cluster: str = "kubectl"
    """With its context only."""
    namespace: str = ""
    namespace_deleting: bool = False
    """Its namespace is being deleted."""
    kind: str = ""
    """Kind of the job object."""
    object: str = ""
    """Kind and name of the job object, as kubectl takes them."""
    kind_installed: bool = True
    """The cluster serves that kind."""
    install: str = ""
    """The command that installs it."""
    job_exists: bool = True
    deleting: bool = False
    """The job object is being deleted."""
    suspended: bool = False
    resume: str = ""
    """The command that resumes a suspended job."""
    queue: str = ""
    """Kueue's queue, which suspends the job until there is room."""
    failure_reason: str = ""
    """The job's reason for its failure."""
    failure_message: str = ""
    """The job's message about it."""
    missing: int = 0
    """Pods that it should have and does not."""
    nodes: int = 1
    volume: str = ""
    image: str = ""
    add_image_secret: str = ""
    """Override for `launch`: its image secrets, and one more called NAME."""
    drop_pull_policy: str = ""
    """Override: on.pod without an imagePullPolicy."""
    run_as_user: str = ""
    """Override: on.pod with a user that is not root."""
    select_arch: str = ""
    """Override: on.selectors with the processor architecture ARCH."""
    fewer_nodes: str = "on.nodes=N"
    """Override: fewer nodes, as a range where it may have one; empty where one node is enough."""
    ask_less: str = "on.nodes=N"
    """Override: fewer nodes, or for a single node, fewer resources."""
    micro_one: str = ""
    """Override: a micro-batch of 1; empty where it is 1 already, or for a script."""
    keep_one: str = ""
    """Override: keep one checkpoint; empty where it keeps one already, or for a script."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordFact:
    """What the run's own records report and is still true."""

    reason: str = ""
    """Why it ended, by its exit.json."""
    advice: str = ""
    """The remedy in its exit.json."""
    failing: bool = False
    """A worker has crashed, and no step was logged since."""
    rank: int | None = None
    """Of the worker that crashed first."""
    signal: str = ""
    error: str = ""
    """The last error in that worker's log."""
    symptom: bool = False
    """The error is a broken connection: another worker failed, and none printed an error of its own."""
    crashes: int = 0
    """In a row."""
    missing_nodes: str = ""
    """Nodes that the others wait for."""
    present_nodes: int = 0
    needed_nodes: str = ""
    lost_node: str = ""
    """A node that was lost, and is waited for."""
    waiting_step: int | None = None
    """The step that waits for its data."""
    save_error: str = ""
    """Why the last checkpoint could not be saved."""
    damage: str = ""
    """Why a checkpoint could not be read."""
    disk_full: bool = False
    folder: str = ""
    """The run directory."""
    silent_s: float = 0.0
    """Seconds since the last logged step."""
    usual_s: float | None = None
    """Median seconds between two logged steps."""
    stall_ratio: float = 0.0
    """`silent_s` over `usual_s`."""
    data_wait: float = 0.0
    """Percent of the recent time spent waiting for data."""
    speed_percent: float = 100.0
    """The recent speed, in percent of the speed before."""
    address: str = ""
    """Where the leading node listens."""
    port: int = 0
    leader: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PodFact:
    """The newest pod of one node of the run."""

    pod: str
    node: int | None = None
    machine: str = ""
    """The cluster's node."""
    machine_state: str = UNKNOWN
    """ready, lost (not ready, or not answering) or gone."""
    image: str = ""
    """Of its container, or of the container that it waits for."""
    container: str = ""
    """The container that it waits for or that failed, where that is not the training container."""
    init: bool = False
    """That is an init container."""
    injected: bool = False
    """The run does not name that container: an operator or a webhook of the cluster has added it."""
    init_code: int | None = None
    """Exit code of a failed init container."""
    phase: str = ""
    alive: bool = False
    """Whether any of its containers is running."""
    running_s: float = 0.0
    """Seconds since its container started."""
    waiting_s: float = 0.0
    """Seconds since it was created."""
    unscheduled: str = ""
    """The scheduler's message."""
    scheduler: str = ""
    scheduler_saw: bool = True
    """A scheduler has processed it."""
    obstacle: str = ""
    """Why no node takes it: selector, avoided, taint, cordon, sick, size, room."""
    constraint: str = ""
    """The label, the taint or the resource of the obstacle."""
    requested: str = ""
    largest: str = ""
    """How much of the resource the largest node has."""
    fix: str = ""
    """The override for `stoker launch` that makes it fit; for a label that the run names, the label for kubectl."""
    example: str = ""
    """A node that has the obstacle."""
    waiting: str = ""
    """Why its container does not start."""
    message: str = ""
    exit_reason: str = ""
    """How its container ended, or that of the pod before it if this pod has not got further."""
    exit_code: int | None = None
    failed_pod: str = ""
    """The pod that ended so: this pod, or the pod before it."""
    memory_limit: str = ""
    more_memory: str = ""
    """Twice its memory, or what a node has."""
    reason: str = ""
    """Why the cluster ended it."""
    disrupted: str = ""
    overdue_s: float | None = None
    """Seconds since it should have been gone; negative before."""
    finalizers: str = ""
    """Finalizers that block its deletion; not the job's own, which the job removes."""
    failed_first: bool = False
    """It was the first pod to fail, and not because another had."""
    error: str = ""
    """The last error in its log."""
    symptom: bool = False
    """It failed because another pod had failed, and no log of that pod is left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EventFact:
    """A warning of the cluster that still matters: about a waiting pod, or a job with missing pods."""

    object_kind: str
    name: str
    reason: str
    message: str
    waiting: str = ""
    """Why the container of its pod does not start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimFact:
    claim: str
    state: str
    """Bound, Pending, Lost or missing."""
    storage_class: str = ""
    """Named by the claim, or the cluster's default."""
    class_state: str = UNKNOWN
    """exists, missing, or none: neither the claim nor the cluster names a class."""
    classes: str = ""
    """Those that the cluster has."""
    binds_late: bool = False
    """Its class binds it only when a pod that uses it is scheduled."""
    message: str = ""
    """Its provisioner's error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ControllerFact:
    """The deployment that creates the pods of the job."""

    controller: str
    controller_namespace: str
    wanted: int
    ready: int


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueFact:
    queue: str
    state: str
    """Open, Closed, missing, full, or none: nothing in the cluster serves queues."""
    message: str = ""
    queues: str = ""
    """Queues that the cluster has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HookFact:
    """A webhook that cannot be called, and keeps pods from being created."""

    webhook: str
    configuration: str
    """The object that configures it, as kubectl takes it."""
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkFact:
    """The connection from a node that has not joined the others to the leading node."""

    node: int
    pod: str
    leader: str
    address: str
    port: int
    answer: str
    """open, refused, silent (no answer) or unreachable."""
    dns: str
    """ok, or broken: whether its pod can resolve names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DiagnosisFacts:
    run: RunFact
    record: RecordFact | None = None
    unread: str = ""
    """Why the run's records could not be read."""
    pods: tuple[PodFact, ...] = ()
    events: tuple[EventFact, ...] = ()
    claims: tuple[ClaimFact, ...] = ()
    controllers: tuple[ControllerFact, ...] = ()
    queues: tuple[QueueFact, ...] = ()
    hooks: tuple[HookFact, ...] = ()
    links: tuple[LinkFact, ...] = ()
