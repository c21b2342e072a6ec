"""The faults: how each is made, how it shows, what has to be said of it, and what of its remedy is typed."""

import json
import shlex
from dataclasses import dataclass, field
from typing import Any

from lab import fake
from lab.places import REGISTRY
from stoker.backends.kubernetes.pod import merged

RELAUNCHED = "stoker launch"
WORKERS = fake.MARK
NAP = {"command": ["sleep", "3600"]}


def container(**fields: Any) -> dict[str, Any]:
    """A pod patch."""
    return {"spec": {"containers": [{"name": "pytorch", **fields}]}}


def python(code: str, **fields: Any) -> dict[str, Any]:
    """A pod patch: Python code in the supervisor's place, told its node."""
    return container(command=["python3", "-u", "-c", code, "$(STOKER_NODE)"], **fields)


@dataclass(frozen=True, kw_only=True)
class Fault:
    id: str
    says: tuple[str, ...]
    """Words of the cause."""
    shows: tuple[str, ...] = ()
    """Regular expressions: found in the run's objects when the fault can be seen; none: once it has befallen it."""
    lasts: float = 0.0
    """Seconds that it has to be seen before it is one."""
    words: tuple[str, ...] = ()
    pod: dict[str, Any] = field(default_factory=dict)
    naps: bool = True
    """Its pods sleep once they start, in the bare image unless it is launched again."""
    after: str = ""
    """What befalls it when it is there."""
    types: tuple[str, ...] = ()
    """Commands of the remedy that are typed, by a word of each; none where it says to wait."""
    filled: dict[str, str] = field(default_factory=dict)
    """What stands for the words in capitals."""
    good: str = "Running"
    """When it is mended, its pods are so, or gone; or it is done; or `cleared`: it is no longer told so."""
    prints: str = ""
    """What is typed only shows this: mending it is not Stoker's affair."""
    home: str = ""
    """A namespace of its own, with that trouble."""
    kind: str = ""
    """The one that it befalls alone."""
    never: tuple[str, ...] = ()
    """Kinds that it cannot befall, or of which nothing is left to tell it by: a plain job then."""
    passing: bool = False
    """The cluster itself makes something else of it, within the minute."""


WAITS = ("Unschedulable|FailedScheduling",)
ENDED = '"phase": "Failed"'
PULLS = ("ErrImagePull|ImagePullBackOff",)
LOGIN = {"REGISTRY": "LOCKED", "USER": "me", "PASSWORD": "open"}
CULPRIT = (  # its peer waits for it on the volume, and follows when the cluster has had time to see that it failed
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
GREEDY = "x = bytearray(60 << 20); print(len(x))"
MESSY = "import time; open('/tmp/x', 'wb').write(b'x' * (30 << 20)); time.sleep(3600)"
TIDY = ("pytorchjob", "vcjob")  # they delete a pod that failed, and may give up before this test comes to it
FAULTS = [
    Fault(
        id="too-large",
        says=("64 cores", "largest node"),
        shows=WAITS,
        words=("on.cpu=64",),
        naps=False,
        types=(RELAUNCHED,),
        good="done",
    ),
    Fault(
        id="no-room",
        says=("8 nvidia.com/gpu free",),
        shows=WAITS,
        words=(
            "on.nodes=2",
            "on.gpus=8",
            f"on.selectors={{kubernetes.io/hostname: NODES-00000, {WORKERS}: NODES}}",  # its reader goes elsewhere
            f"on.tolerations=['{WORKERS}']",
        ),
        types=(RELAUNCHED,),
        filled={"N": "1"},
    ),
    Fault(id="no-label", says=("team=NODES",), shows=WAITS, words=("on.selectors={team: NODES}",), types=("label",)),
    Fault(
        id="taint",
        says=(f"taint {WORKERS}",),
        shows=WAITS,
        words=(f"on.selectors={{{WORKERS}: NODES}}", "on.tolerations=[other]"),
        naps=False,
        types=(RELAUNCHED,),
    ),
    Fault(
        id="cordoned",
        says=("cordoned",),
        shows=WAITS,
        words=("on.selectors={kubernetes.io/hostname: NODES-00001}", f"on.tolerations=['{WORKERS}']"),
        types=("uncordon",),
    ),
    Fault(
        id="claim-missing",
        says=("claim nothing is missing",),
        shows=WAITS,
        words=("on.volume=nothing",),
        types=(RELAUNCHED,),
        filled={"NAME": "VOLUME"},
    ),
    Fault(
        id="claim-class-missing",
        says=("storage class nonesuch",),
        shows=WAITS,
        words=("on.volume=classless",),
        types=(RELAUNCHED,),
        filled={"NAME": "VOLUME"},
    ),
    Fault(
        id="claim-without-class",
        says=("names no storage class",),
        shows=WAITS,
        words=("on.volume=bare",),
        types=(RELAUNCHED,),
        filled={"NAME": "VOLUME"},
    ),
    Fault(
        id="image-not-found",
        says=("no image", "lab/nothing:1"),
        shows=PULLS,
        words=(f"on.image={REGISTRY}/lab/nothing:1", "on.registry=null"),
        pod=container(**NAP),
        naps=False,
        types=(RELAUNCHED,),
        filled={"NAME": "IMAGE"},
    ),
    Fault(
        id="image-name",
        says=("Not/A_Name",),
        shows=("InvalidImageName",),
        words=("on.image=Not/A_Name", "on.registry=null"),
        pod=container(**NAP),
        naps=False,
        types=(RELAUNCHED,),
        filled={"NAME": "IMAGE"},
    ),
    Fault(
        id="image-platform",
        says=("architecture",),
        shows=PULLS,
        words=(f"on.image={REGISTRY}/lab/strange:1", "on.registry=null"),
        pod=container(**NAP),
        naps=False,
        types=("on.image=",),
        filled={"NAME": "IMAGE"},
    ),
    Fault(
        id="image-not-allowed",
        says=("denies",),
        shows=PULLS,
        pod=container(image="MADE", **NAP),
        types=("docker-registry", RELAUNCHED),
        filled=LOGIN | {"NAME": "mine"},
    ),
    Fault(
        id="pull-secret-missing",
        says=("secret opener",),
        shows=(*PULLS, "FailedToRetrieveImagePullSecret"),
        words=("on.image_secrets=[opener]",),
        pod=container(image="LOCKED/lab/bare:1", **NAP),
        types=("docker-registry",),
        filled=LOGIN,
    ),
    Fault(
        id="image-without-python",
        says=("no python3",),
        shows=("executable file not found|no such file",),
        words=("on.image=BARE", "on.registry=null"),
        naps=False,
        types=(RELAUNCHED,),
        filled={"NAME": "IMAGE"},
        good="done",
    ),
    Fault(
        id="service-account-missing",
        says=("account nobody",),
        shows=("serviceaccount .*not found",),
        words=("on.service_account=nobody",),
        types=("serviceaccount",),
    ),
    Fault(
        id="secret-missing",
        says=("secret hidden",),
        shows=("CreateContainerConfigError",),
        pod=container(envFrom=[{"secretRef": {"name": "hidden"}}]),
        types=("generic",),
        filled={"NAME": "A", "VALUE": "b"},
    ),
    Fault(
        id="mount-missing",
        says=("ConfigMap settings",),
        shows=("FailedMount",),
        pod=merged(
            container(volumeMounts=[{"name": "more", "mountPath": "/more"}]),
            {"spec": {"volumes": [{"name": "more", "configMap": {"name": "settings"}}]}},
        ),
        types=("configmap",),
        filled={"NAME": "A", "VALUE": "b"},
    ),
    Fault(
        id="suspended",
        says=("suspended",),
        shows=('"suspend": true',),
        after="suspend",
        types=("patch",),
        never=("vcjob",),
    ),
    Fault(
        id="pod-failed",
        says=("ValueError: no such token", "exit code 3"),
        shows=('"exitCode": 3',),
        lasts=8.0,
        words=("on.nodes=1..2",),
        pod=python(CULPRIT),
        naps=False,
        types=("logs",),
        prints="ValueError: no such token",
    ),
    Fault(
        id="out-of-memory",
        says=("48 MiB of memory",),
        shows=("OOMKilled", ENDED),
        words=("on.memory=48MiB",),
        never=TIDY,
        pod=python(GREEDY),
        naps=False,
        types=(RELAUNCHED,),
        good="done",
    ),
    Fault(
        id="evicted-own-disk",
        says=("own limit",),
        shows=('"reason": "Evicted"', ENDED),
        never=TIDY,
        pod=python(MESSY, resources={"limits": {"ephemeral-storage": "5Mi"}}),
        naps=False,
        types=(RELAUNCHED,),
        filled={"VALUE": shlex.quote(json.dumps(python(MESSY)))},
    ),
    Fault(
        id="pod-deadline",
        says=("exceeded its time limit",),
        shows=('"reason": "DeadlineExceeded"', ENDED),
        never=TIDY,
        pod={"spec": {"activeDeadlineSeconds": 1}},
        types=(RELAUNCHED,),
        filled={"VALUE": shlex.quote(json.dumps(container(**NAP)))},
    ),
    Fault(
        id="pod-deleted",
        says=("was deleted",),
        shows=("deletionTimestamp",),
        words=("on.grace=1h",),
        after="delete",
    ),
    Fault(
        id="pod-stuck",
        says=("finalizer",),
        shows=("deletionTimestamp",),
        lasts=7.0,  # its grace, and five seconds that it may take
        after="hold",
        types=("patch",),
        good="gone",
    ),
    Fault(
        id="quota",
        says=("quota tight", "requests.cpu=100m"),
        shows=("exceeded quota",),
        words=("on.cpu=0.1",),
        home="quota",
        types=("patch",),
        filled={"VALUE": "1"},
    ),
    Fault(
        id="webhook-down",
        says=("webhook why.example.com",),
        shows=("failed calling webhook",),
        home="webhook",
        never=("vcjob",),  # Volcano gives up
        types=("delete",),
    ),
    Fault(
        id="namespace-ending",
        says=("is being deleted",),
        shows=('"phase": "Terminating"', "NamespaceFinalizersRemaining"),  # conditions follow the phase
        home="ending",
        types=("get namespace",),
        prints="finalizers",
    ),
    Fault(
        id="queue-over-capacity",
        says=("insufficient cpu",),
        shows=("queue resource quota insufficient",),
        words=("on.nodes=2", "on.cpu=0.1", "on.queue=NODES"),
        kind="vcjob",
        types=(RELAUNCHED,),
        filled={"N": "1"},
    ),
    Fault(
        id="machine-gone",
        says=("no longer in the cluster",),
        words=("on.selectors={kubernetes.io/hostname: NODES-00002}", f"on.tolerations=['{WORKERS}']"),
        after="unplug",
        types=("delete pod",),
        good="cleared",
        passing=True,
    ),
    Fault(
        id="machine-lost",
        says=("does not answer",),
        shows=('"taints": [^]]*not-ready',),
        words=("on.selectors={kubernetes.io/hostname: NODES-silent}", f"on.tolerations=['{WORKERS}']"),
        after="silence",
        types=("describe node",),
        prints="not-ready",
        passing=True,
    ),
    Fault(id="job-gone", says=("not in the cluster",), after="gone", types=(RELAUNCHED,)),
    Fault(
        id="suspended-by-volcano",
        says=("suspended",),
        shows=('"phase": "Aborted"',),
        after="suspend",
        kind="vcjob",
        types=(RELAUNCHED,),
    ),
]
LEAST_TYPED = 24
PAIRS = [  # look-alikes: both wait, both cannot pull, both have failed, both are on their way out
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
