"""The faults: how each is made, how it is seen in the cluster, its cause, and the commands of its remedy."""

import json
import shlex
from dataclasses import dataclass, field
from typing import Any

from lab import fake
from lab.places import REGISTRY
from stoker.backends.kubernetes.pod import merged

RELAUNCHED = "stoker launch"
FAKE_NODES = fake.MARK
SLEEP = {"command": ["sleep", "3600"]}


def container(**fields: Any) -> dict[str, Any]:
    """A pod patch for the training container."""
    return {"spec": {"containers": [{"name": "pytorch", **fields}]}}


def python(code: str, **fields: Any) -> dict[str, Any]:
    """A pod patch that runs Python code instead of the supervisor, with the node's index as argument."""
    return container(command=["python3", "-u", "-c", code, "$(STOKER_NODE)"], **fields)


@dataclass(frozen=True, kw_only=True)
class Fault:
    id: str
    cause: tuple[str, ...]
    """Parts of the reported cause."""
    visible: tuple[str, ...] = ()
    """Regular expressions that match the run's objects once the fault can be seen. None: it is seen when it is made."""
    visible_for_s: float = 0.0
    """How long it must be visible before it is diagnosed."""
    overrides: tuple[str, ...] = ()
    pod: dict[str, Any] = field(default_factory=dict)
    sleeps: bool = True
    """Its pods sleep once they start, in the bare image unless the remedy launches the run again."""
    inject: str = ""
    """What is done to the run after its launch."""
    typed: tuple[str, ...] = ()
    """The commands of the remedy that are typed, by a word of each. None: the remedy is to wait."""
    placeholders: dict[str, str] = field(default_factory=dict)
    """Values for the words in capitals in the remedy."""
    recovered: str = "Running"
    """The phase of its pods after the remedy; or `gone`: it has no pods; `done`: the run is done; `cleared`: the cause
    is no longer reported."""
    prints: str = ""
    """Expected output of the commands, which only show the problem: Stoker cannot fix it."""
    namespace: str = ""
    """The problem of its own namespace, if it needs one."""
    only_kind: str = ""
    """The only kind of job that can have it."""
    other_kinds: tuple[str, ...] = ()
    """Kinds of jobs that cannot have it, or leave no trace of it: a plain job is used instead."""
    transient: bool = False
    """The cluster replaces it by another state within a minute."""


UNSCHEDULABLE = ("Unschedulable|FailedScheduling",)
FAILED = '"phase": "Failed"'
CANNOT_PULL = ("ErrImagePull|ImagePullBackOff",)
LOGIN = {"REGISTRY": "LOCKED", "USER": "me", "PASSWORD": "open"}
CULPRIT = (  # its peer waits for its file on the volume, and fails some seconds later
    "import os, sys, time\n"
    "mark = '/stoker/culprit-NODES'\n"
    "if sys.argv[1] == '1':\n"
    "    print('ValueError: no such token', flush=True)\n"
    "    open(mark, 'w').close()\n"
    "    sys.exit(3)\n"
    "while not os.path.exists(mark): time.sleep(0.1)\n"
    "time.sleep(5)\n"
    "print('RuntimeError: Connection closed by peer', flush=True)\n"
    "sys.exit(3)"
)
ALLOCATE = "x = bytearray(60 << 20); print(len(x))"
FILL_DISK = "import time; open('/tmp/x', 'wb').write(b'x' * (30 << 20)); time.sleep(3600)"
DELETE_FAILED_PODS = ("pytorchjob", "vcjob")  # and may give up before the test sees the pod
FAULTS = [
    Fault(
        id="too-large",
        cause=("64 cores", "largest node"),
        visible=UNSCHEDULABLE,
        overrides=("on.cpu=64",),
        sleeps=False,
        typed=(RELAUNCHED,),
        recovered="done",
    ),
    Fault(
        id="no-room",
        cause=("8 nvidia.com/gpu free",),
        visible=UNSCHEDULABLE,
        overrides=(
            "on.nodes=2",
            "on.gpus=8",
            f"on.selectors={{kubernetes.io/hostname: NODES-00000, {FAKE_NODES}: NODES}}",  # its reader runs elsewhere
            f"on.tolerations=['{FAKE_NODES}']",
        ),
        typed=(RELAUNCHED,),
        placeholders={"N": "1"},
    ),
    Fault(
        id="no-label",
        cause=("team=NODES",),
        visible=UNSCHEDULABLE,
        overrides=("on.selectors={team: NODES}",),
        typed=("label",),
    ),
    Fault(
        id="taint",
        cause=(f"taint {FAKE_NODES}",),
        visible=UNSCHEDULABLE,
        overrides=(f"on.selectors={{{FAKE_NODES}: NODES}}", "on.tolerations=[other]"),
        sleeps=False,
        typed=(RELAUNCHED,),
    ),
    Fault(
        id="cordoned",
        cause=("cordoned",),
        visible=UNSCHEDULABLE,
        overrides=("on.selectors={kubernetes.io/hostname: NODES-00001}", f"on.tolerations=['{FAKE_NODES}']"),
        typed=("uncordon",),
    ),
    Fault(
        id="claim-missing",
        cause=("claim nothing is missing",),
        visible=UNSCHEDULABLE,
        overrides=("on.volume=nothing",),
        typed=(RELAUNCHED,),
        placeholders={"NAME": "VOLUME"},
    ),
    Fault(
        id="claim-class-missing",
        cause=("storage class nonesuch",),
        visible=UNSCHEDULABLE,
        overrides=("on.volume=classless",),
        typed=(RELAUNCHED,),
        placeholders={"NAME": "VOLUME"},
    ),
    Fault(
        id="claim-without-class",
        cause=("names no storage class",),
        visible=UNSCHEDULABLE,
        overrides=("on.volume=bare",),
        typed=(RELAUNCHED,),
        placeholders={"NAME": "VOLUME"},
    ),
    Fault(
        id="image-not-found",
        cause=("no image", "lab/nothing:1"),
        visible=CANNOT_PULL,
        overrides=(f"on.image={REGISTRY}/lab/nothing:1", "on.registry=null"),
        pod=container(**SLEEP),
        sleeps=False,
        typed=(RELAUNCHED,),
        placeholders={"NAME": "IMAGE"},
    ),
    Fault(
        id="image-name",
        cause=("Not/A_Name",),
        visible=("InvalidImageName",),
        overrides=("on.image=Not/A_Name", "on.registry=null"),
        pod=container(**SLEEP),
        sleeps=False,
        typed=(RELAUNCHED,),
        placeholders={"NAME": "IMAGE"},
    ),
    Fault(
        id="image-platform",
        cause=("architecture",),
        visible=CANNOT_PULL,
        overrides=(f"on.image={REGISTRY}/lab/foreign:1", "on.registry=null"),
        pod=container(**SLEEP),
        sleeps=False,
        typed=("on.image=",),
        placeholders={"NAME": "IMAGE"},
    ),
    Fault(
        id="image-not-allowed",
        cause=("denies",),
        visible=CANNOT_PULL,
        pod=container(image="BUILT", **SLEEP),
        typed=("docker-registry", RELAUNCHED),
        placeholders=LOGIN | {"NAME": "mine"},
    ),
    Fault(
        id="pull-secret-missing",
        cause=("secret opener",),
        visible=(*CANNOT_PULL, "FailedToRetrieveImagePullSecret"),
        overrides=("on.image_secrets=[opener]",),
        pod=container(image="LOCKED/lab/bare:1", **SLEEP),
        typed=("docker-registry",),
        placeholders=LOGIN,
    ),
    Fault(
        id="image-without-python",
        cause=("no python3",),
        visible=("executable file not found|no such file",),
        overrides=("on.image=BARE", "on.registry=null"),
        sleeps=False,
        typed=(RELAUNCHED,),
        placeholders={"NAME": "IMAGE"},
        recovered="done",
    ),
    Fault(
        id="service-account-missing",
        cause=("account nobody",),
        visible=("serviceaccount .*not found",),
        overrides=("on.service_account=nobody",),
        typed=("serviceaccount",),
    ),
    Fault(
        id="secret-missing",
        cause=("secret hidden",),
        visible=("CreateContainerConfigError",),
        pod=container(envFrom=[{"secretRef": {"name": "hidden"}}]),
        typed=("generic",),
        placeholders={"NAME": "A", "VALUE": "b"},
    ),
    Fault(
        id="mount-missing",
        cause=("ConfigMap settings",),
        visible=("FailedMount",),
        pod=merged(
            container(volumeMounts=[{"name": "more", "mountPath": "/more"}]),
            {"spec": {"volumes": [{"name": "more", "configMap": {"name": "settings"}}]}},
        ),
        typed=("configmap",),
        placeholders={"NAME": "A", "VALUE": "b"},
    ),
    Fault(
        id="suspended",
        cause=("suspended",),
        visible=('"suspend": true',),
        inject="suspend",
        typed=("patch",),
        other_kinds=("vcjob",),
    ),
    Fault(
        id="pod-failed",
        cause=("ValueError: no such token", "exit code 3"),
        visible=('"exitCode": 3',),
        visible_for_s=8.0,
        overrides=("on.nodes=1..2",),
        pod=python(CULPRIT),
        sleeps=False,
        typed=("logs",),
        prints="ValueError: no such token",
    ),
    Fault(
        id="out-of-memory",
        cause=("48 MiB of memory",),
        visible=("OOMKilled", FAILED),
        overrides=("on.memory=48MiB",),
        other_kinds=DELETE_FAILED_PODS,
        pod=python(ALLOCATE),
        sleeps=False,
        typed=(RELAUNCHED,),
        recovered="done",
    ),
    Fault(
        id="evicted-own-disk",
        cause=("own limit",),
        visible=('"reason": "Evicted"', FAILED),
        other_kinds=DELETE_FAILED_PODS,
        pod=python(FILL_DISK, resources={"limits": {"ephemeral-storage": "5Mi"}}),
        sleeps=False,
        typed=(RELAUNCHED,),
        placeholders={"VALUE": shlex.quote(json.dumps(python(FILL_DISK)))},
    ),
    Fault(
        id="pod-deadline",
        cause=("exceeded its time limit",),
        visible=('"reason": "DeadlineExceeded"', FAILED),
        other_kinds=DELETE_FAILED_PODS,
        pod={"spec": {"activeDeadlineSeconds": 1}},
        typed=(RELAUNCHED,),
        placeholders={"VALUE": shlex.quote(json.dumps(container(**SLEEP)))},
    ),
    Fault(
        id="pod-deleted",
        cause=("was deleted",),
        visible=("deletionTimestamp",),
        overrides=("on.grace=1h",),
        inject="delete",
    ),
    Fault(
        id="pod-stuck",
        cause=("finalizer",),
        visible=("deletionTimestamp",),
        visible_for_s=7.0,  # its grace period, and five seconds
        inject="hold",
        typed=("patch",),
        recovered="gone",
    ),
    Fault(
        id="quota",
        cause=("quota tight", "requests.cpu=100m"),
        visible=("exceeded quota",),
        overrides=("on.cpu=0.1",),
        namespace="quota",
        typed=("patch",),
        placeholders={"VALUE": "1"},
    ),
    Fault(
        id="webhook-down",
        cause=("webhook why.example.com",),
        visible=("failed calling webhook",),
        namespace="webhook",
        other_kinds=("vcjob",),  # Volcano gives up
        typed=("delete",),
    ),
    Fault(
        id="namespace-ending",
        cause=("is being deleted",),
        # The conditions follow the phase. While a pod of a Job keeps its finalizer, they report that nothing remains.
        visible=('"phase": "Terminating"', "NamespaceFinalizersRemaining"),
        namespace="ending",
        typed=("get namespace",),
        prints="finalizers",
    ),
    Fault(
        id="queue-over-capacity",
        cause=("insufficient cpu",),
        visible=("queue resource quota insufficient",),
        overrides=("on.nodes=2", "on.cpu=0.1", "on.queue=NODES"),
        only_kind="vcjob",
        typed=(RELAUNCHED,),
        placeholders={"N": "1"},
    ),
    Fault(
        id="machine-gone",
        cause=("no longer in the cluster",),
        overrides=("on.selectors={kubernetes.io/hostname: NODES-00002}", f"on.tolerations=['{FAKE_NODES}']"),
        inject="unplug",
        typed=("delete pod",),
        recovered="cleared",
        transient=True,
    ),
    Fault(
        id="machine-lost",
        cause=("does not answer",),
        visible=('"taints": [^]]*not-ready',),
        overrides=("on.selectors={kubernetes.io/hostname: NODES-silent}", f"on.tolerations=['{FAKE_NODES}']"),
        inject="silence",
        typed=("describe node",),
        prints="not-ready",
        transient=True,
    ),
    Fault(id="job-gone", cause=("not in the cluster",), inject="gone", typed=(RELAUNCHED,)),
    Fault(
        id="suspended-by-volcano",
        cause=("suspended",),
        visible=('"phase": "Aborted"',),
        inject="suspend",
        only_kind="vcjob",
        typed=(RELAUNCHED,),
    ),
]
MIN_TYPED = 24
PAIRS = [  # faults with the same symptom: pending, cannot pull, failed, terminating
    ("too-large", "no-room"),
    ("no-label", "taint"),
    ("taint", "cordoned"),
    ("claim-missing", "claim-class-missing"),
    ("quota", "no-room"),
    ("image-not-found", "image-not-allowed"),
    ("image-not-allowed", "pull-secret-missing"),
    ("out-of-memory", "evicted-own-disk"),
    ("pod-deleted", "pod-stuck"),
]
