"""Faults made with kubectl or on a node, each told by its cause within ten seconds, with a remedy that works."""

import base64
import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab import fake, host
from lab.kubectl import Kubectl
from lab.places import LAPTOP, NODES, REGISTRY, STATE
from stoker.api.cluster import with_image
from stoker.cli.main import main
from stoker.launch.jobs import KINDS
from stoker.launch.kubernetes import NO_CLUSTER, place_of, plan
from stoker.launch.pod import merged
from stoker.observe.diagnose import diagnose
from stoker.observe.rules import Finding
from stoker.rundir import RunDir
from stoker.spec.load import load

PATIENCE = 180.0
QUICK = 10.0  # seconds that an answer may take
AT_ONCE = 3
RELAUNCHED = "stoker launch"
HOMES = ("Node", "Namespace")
COMMAND = re.compile(r"(?:kubectl|stoker (?:stop|launch)) .*?(?=;|, and |, or | \(|\)|$)")
TRAINING = [
    "model.layers=1", "model.heads=2", "model.width=32", "model.context=64", "data.tokenizer.train=300",
    "batch.sequences=8", "batch.length=32", "until.steps=1000", "checkpoint.every=500", "eval.every=0",
    "log.every=1", "log.tensorboard=false", "precision=fp32", "compile=false", "on.workers=1",
]  # fmt: skip
WORKERS = fake.MARK
NAP = {"command": ["sleep", "3600"]}
HELD = "example.com/held"
FREE = json.dumps({"metadata": {"finalizers": None}})
RESOURCES = {"vcjob": "jobs.batch.volcano.sh"}


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


WAITS = ("Unschedulable|FailedScheduling",)
PULLS = ("ErrImagePull|ImagePullBackOff",)
LOGIN = {"REGISTRY": "LOCKED", "USER": "me", "PASSWORD": "open"}
CULPRIT = (  # its peer follows it
    "import sys, time\n"
    "if sys.argv[1] == '1': print('ValueError: no such token')\n"
    "else: time.sleep(2); print('RuntimeError: Connection closed by peer')\n"
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
            "on.selectors={kubernetes.io/hostname: NODES-00000}",
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
        says=("closed to new pods",),
        shows=WAITS,
        words=("on.selectors={kubernetes.io/hostname: NODES-00001}", f"on.tolerations=['{WORKERS}']"),
        types=("uncordon",),
    ),
    Fault(
        id="claim-missing",
        says=("claim nothing is not there",),
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
        says=("processors",),
        shows=PULLS,
        words=(f"on.image={REGISTRY}/lab/strange:1", "on.registry=null"),
        pod=container(**NAP),
        naps=False,
        types=("on.image=",),
        filled={"NAME": "IMAGE"},
    ),
    Fault(
        id="image-not-allowed",
        says=("does not let",),
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
        says=("configmap settings",),
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
        lasts=4.0,
        words=("on.nodes=1..2",),
        pod=python(CULPRIT),
        naps=False,
        types=("logs",),
        prints="ValueError: no such token",
    ),
    Fault(
        id="out-of-memory",
        says=("48 MiB of memory",),
        shows=("OOMKilled",),
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
        shows=('"reason": "Evicted"',),
        never=TIDY,
        pod=python(MESSY, resources={"limits": {"ephemeral-storage": "5Mi"}}),
        naps=False,
        types=(RELAUNCHED,),
        filled={"VALUE": shlex.quote(json.dumps(python(MESSY)))},
    ),
    Fault(
        id="pod-deadline",
        says=("took longer",),
        shows=('"reason": "DeadlineExceeded"',),
        never=TIDY,
        pod={"spec": {"activeDeadlineSeconds": 1}},
        types=(RELAUNCHED,),
        filled={"VALUE": shlex.quote(json.dumps(container(**NAP)))},
    ),
    Fault(
        id="pod-deleted",
        says=("somebody deleted",),
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
        shows=('"phase": "Terminating"',),
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
    ),
    Fault(
        id="machine-lost",
        says=("does not answer",),
        shows=('"taints": [^]]*not-ready',),
        words=("on.selectors={kubernetes.io/hostname: NODES-silent}", f"on.tolerations=['{WORKERS}']"),
        after="silence",
        types=("describe node",),
        prints="not-ready",
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


@pytest.fixture
def stoker(lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> Callable[..., str]:
    monkeypatch.setenv("KUBECONFIG", str(lab.kubeconfig))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{lab.kubectl.program.parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('hello')\n")
    program = tmp_path / "bin" / "stoker"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m stoker "$@"\n')
    program.chmod(0o755)

    def call(*words: str) -> str:
        code = main(list(words))
        said = capsys.readouterr()
        assert code == 0, said.err
        return said.out

    return call


@dataclass(frozen=True)
class Bed:
    """Where runs are planted."""

    lab: Any
    namespace: Any
    folder: Path
    locked: str
    nodes: str
    """The name of the fake nodes."""

    def home(self, fault: Fault) -> Any:
        """Its namespace, with the trouble that it has."""
        if not fault.home:
            return self.namespace
        name = f"{self.namespace.name}-{fault.home}"
        self.lab.kubectl("create", "namespace", name)
        kubectl = replace(self.lab.kubectl, namespace=name)
        kubectl.apply(claim(self.namespace.volume), *troubles(fault.home, name))
        return replace(self.namespace, name=name, kubectl=kubectl)

    def plant(self, fault: Fault, job: str) -> RunDir:
        """As `launch` would leave it in the cluster, had nothing been looked at before."""
        home = self.home(fault)
        name = f"{fault.id[:30]}-{uuid.uuid4().hex[:4]}"
        # What is launched again goes through a pod of its image, which needs Stoker then.
        image = {} if RELAUNCHED in fault.types else {"image": self.lab.bare}
        pod = merged(container(**image, **NAP), fault.pod) if fault.naps else fault.pod
        words = ["script=train.py", f"name={name}", "on.kind=kubernetes", f"on.job={job}", "on.grace=1s"]
        words += [f"on.namespace={home.name}", f"on.volume={self.namespace.volume}"]
        words += [f"on.image=http://{self.lab.base}", f"on.registry=http://{REGISTRY}/tests/runs"]
        words += map(self.filled, fault.words)
        text = self.filled(json.dumps(pod))
        if "MADE" in text:  # the run's own image, from the registry that is locked
            text = text.replace("MADE", str(with_image(load(None, words).spec).on.image).replace(REGISTRY, self.locked))
        spec = load(None, [*words, f"on.pod={text}"]).spec
        run = RunDir(self.folder / "runs" / name)
        run.create(spec, None)
        planned = plan(with_image(spec), replace(NO_CLUSTER, namespace=home.name), run.path)
        for one in planned.objects:
            assert wait(lambda one=one: taken(home.kubectl, one), f"{one['kind']} {name}")
        context = yaml.safe_load(self.lab.kubeconfig.read_text())["current-context"]
        run.write_place(place_of(planned, context=context))
        return run

    def filled(self, text: str) -> str:
        """With what the words in capitals stand for here."""
        image = f"http://{self.lab.base} on.registry=http://{REGISTRY}/tests/runs"
        known = {"LOCKED": self.locked, "BARE": self.lab.bare, "NODES": self.nodes, "IMAGE": image}
        for word, value in (known | {"VOLUME": self.namespace.volume}).items():
            text = text.replace(word, value)
        return text

    def pods(self, run: RunDir) -> list[dict[str, Any]]:
        place = run.place_ref()
        assert place is not None
        return replace(self.lab.kubectl, namespace=place.namespace).json(
            "get", "pods", "-l", f"stoker.dev/run={run.name}"
        )["items"]

    def awaited(self, run: RunDir, phase: str) -> list[dict[str, Any]]:
        def pods() -> list[dict[str, Any]]:
            found = self.pods(run)
            return found if all(one["status"]["phase"] == phase for one in found) else []

        return wait(pods, f"{run.name}, {phase},")

    def befall(self, fault: Fault, run: RunDir, job: str) -> None:
        """What happens to a run that was well."""
        kubectl, place = self.namespace.kubectl, run.place_ref()
        owner = f"{RESOURCES.get(job, job)}/{run.name}"
        if fault.home == "ending":
            self.lab.kubectl("delete", "namespace", str(place and place.namespace), "--wait=false")
        elif fault.after == "suspend" and job == "vcjob":
            self.awaited(run, "Running")
            kubectl("create", "--filename=-", input=json.dumps(abort(kubectl.json("get", owner))))
        elif fault.after == "suspend":
            self.awaited(run, "Running")
            suspended = {"runPolicy": {"suspend": True}} if job == "pytorchjob" else {"suspend": True}
            kubectl("patch", owner, "--type=merge", "-p", json.dumps({"spec": suspended}))
        elif fault.after == "delete":
            self.awaited(run, "Running")
            kubectl("delete", "pods", "-l", f"stoker.dev/run={run.name}", "--wait=false")
        elif fault.after == "hold":
            [pod] = self.awaited(run, "Running")
            held = {"metadata": {"finalizers": [HELD]}}
            kubectl("patch", "pod", pod["metadata"]["name"], "--type=merge", "-p", json.dumps(held))
            kubectl("delete", owner, "--cascade=foreground", "--wait=false")
        elif fault.after == "unplug":
            self.awaited(run, "Running")
            self.lab.kubectl("delete", "node", f"{self.nodes}-00002")
        elif fault.after == "silence":
            tell(self.lab.kubectl, f"{self.nodes}-silent", ready="True")
            assert wait(lambda: any(pod["spec"].get("nodeName") for pod in self.pods(run)))
            tell(self.lab.kubectl, f"{self.nodes}-silent", ready="False")
        elif fault.after == "gone":
            kubectl("delete", owner, "--wait=true")
        assert place is not None


@pytest.fixture
def bed(lab, namespace, tmp_path: Path, stoker) -> Iterator[Bed]:  # noqa: ARG001
    """With claims that cannot be bound, an image of another platform, a registry that is locked, and fake nodes."""
    namespace.kubectl.apply(claim("classless", storageClassName="nonesuch"), claim("bare", storageClassName=""))
    put_strange_image()
    named = f"why{uuid.uuid4().hex[:6]}"
    fake.have(3, named=named)
    try:
        lab.kubectl("cordon", f"{named}-00001")
        lab.kubectl.apply(queue(named), dumb_node(f"{named}-silent"))
        with locked_registry() as locked:
            yield Bed(lab, namespace, tmp_path, locked, named)
    finally:
        lab.kubectl("label", "nodes", "--all", "team-")
        lab.kubectl("delete", "validatingwebhookconfiguration", f"{namespace.name}-webhook", "--ignore-not-found")
        for pod in namespace.kubectl.json("get", "pods")["items"]:
            if HELD in pod["metadata"].get("finalizers", []):
                namespace.kubectl("patch", "pod", pod["metadata"]["name"], "--type=merge", "-p", FREE, check=False)
        for trouble in ("quota", "webhook", "ending"):
            release(lab.kubectl, f"{namespace.name}-{trouble}")
        lab.kubectl("delete", "queue", named, "--ignore-not-found", check=False)
        lab.kubectl("delete", "node", f"{named}-silent", "--ignore-not-found")
        fake.have(0, named=named)


def taken(kubectl: Kubectl, one: dict[str, Any]) -> bool:
    """A TrainJob is refused until its webhook has heard of the runtime that was made just before it."""
    try:
        kubectl.apply(one)
    except RuntimeError as e:
        if "must be created before the TrainJob" in str(e):
            return False
        raise
    return True


def abort(job: dict[str, Any]) -> dict[str, Any]:
    """As `vcctl job suspend` asks for it."""
    target = {"apiVersion": job["apiVersion"], "kind": job["kind"]} | {
        key: job["metadata"][key] for key in ("name", "uid")
    }
    meta = {"generateName": f"{job['metadata']['name']}-abort-", "namespace": job["metadata"]["namespace"]}
    head = {"apiVersion": "bus.volcano.sh/v1alpha1", "kind": "Command", "metadata": meta}
    return head | {"action": "AbortJob", "target": target}


def dumb_node(name: str) -> dict[str, Any]:
    """A node without anything that runs its pods."""
    meta = {"name": name, "labels": {"kubernetes.io/hostname": name}}
    taint = {"key": WORKERS, "value": "fake", "effect": "NoSchedule"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {"taints": [taint]}}


def tell(kubectl: Kubectl, name: str, *, ready: str) -> None:
    """Say in a node's place whether it is ready."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    condition = {"type": "Ready", "status": ready, "reason": "Told", "message": "", "lastHeartbeatTime": now}
    room = {"cpu": "8", "memory": "8Gi", "pods": "10"}
    status = {"conditions": [condition], "allocatable": room, "capacity": room}
    kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))


def queue(name: str) -> dict[str, Any]:
    spec = {"weight": 1, "capability": {"cpu": "100m"}}
    return {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}


def troubles(home: str, name: str) -> list[dict[str, Any]]:
    """What makes a namespace a bad place."""
    if home == "quota":
        spec = {"hard": {"requests.cpu": "50m"}}
        return [{"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "tight"}, "spec": spec}]
    if home == "ending":
        meta = {"name": "held", "finalizers": [HELD]}
        return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}]
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    hook = {
        "name": "why.example.com",
        "rules": [rule],
        "clientConfig": {"service": {"name": "nobody", "namespace": name}},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 2,
    }
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    return [head | {"metadata": {"name": name}, "webhooks": [hook]}]


def release(kubectl: Kubectl, name: str) -> None:
    """Have a namespace go, whatever holds it."""
    inside = replace(kubectl, namespace=name)
    inside("patch", "configmap", "held", "--type=merge", "-p", FREE, check=False)
    inside("delete", ",".join(RESOURCES.get(kind, f"{kind}s") for kind in KINDS), "--all", "--wait=false", check=False)
    inside("delete", "pods", "--all", "--grace-period=0", "--force", "--wait=false", check=False)
    kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


def kinds_of(fault: Fault, index: int, kinds: list[str]) -> str:
    kind = fault.kind or kinds[index % len(kinds)]
    return "job" if kind in fault.never else kind


@dataclass(frozen=True, kw_only=True)
class Told:
    """The first answer that named the cause, or the last that did not."""

    found: Finding | None
    seconds: float
    """Since somebody asked, with the fault to be seen in the cluster."""
    symptom: str


@pytest.mark.parametrize(
    "kinds", [list(KINDS), *(pytest.param([kind], marks=pytest.mark.soak) for kind in KINDS)], ids="+".join
)
def test_each_fault_is_told_by_its_cause_within_ten_seconds_and_its_remedy_works(kinds: list[str], bed: Bed) -> None:
    planted = {}
    for n, fault in enumerate(FAULTS):
        job = kinds_of(fault, n, kinds)
        planted[fault.id] = Planted(fault, bed.plant(fault, job), job)
    if len(kinds) > 1:
        assert len({one.job for one in planted.values()}) >= 3
    told = causes(bed, planted)
    wrong = [f"{name} was never to be seen" for name in planted if name not in told]
    for name, one in told.items():
        cause = one.found.cause if one.found else "nothing"
        if one.found is None or one.found.id != name or one.seconds > QUICK:
            wrong.append(f"{name}: {one.found and one.found.id}, {cause} ({one.seconds:.1f} s)")
        wrong += [f"{name}: {cause}" for word in planted[name].fault.says if bed.filled(word) not in cause]
    assert not wrong, "\n".join(wrong)
    for one, other in PAIRS:
        assert told[one].symptom == told[other].symptom, f"{one} and {other} do not look alike"
        assert told[one].found.id != told[other].found.id
    typed = [(one, told[name].found.remedy) for name, one in planted.items() if one.fault.types]
    assert len(typed) >= LEAST_TYPED
    typed.sort(key=lambda each: RELAUNCHED in each[0].fault.types)  # a pull is tried again ever later
    with ThreadPoolExecutor(AT_ONCE) as pool:
        failed = list(filter(None, pool.map(lambda each: type_remedy(bed, *each), typed)))
    with ThreadPoolExecutor(len(typed)) as pool:
        failed += filter(None, pool.map(lambda each: mended(bed, each[0]), typed))
    assert not failed, "\n".join(failed)


def test_runs_of_every_kind_that_are_well_yield_none(lab, namespace, stoker, books: Path, tmp_path: Path) -> None:
    """Scripts that sleep, and a training, from its first steps to its end."""
    (tmp_path / "train.py").write_text("import time\nwhile True: time.sleep(1)\n")
    where = ["on.kind=kubernetes", f"on.volume={namespace.volume}", f"on.namespace={namespace.name}", "on.grace=1s"]
    where += [f"on.image=http://{lab.base}", f"on.registry=http://{REGISTRY}/tests/runs"]

    def launched(name: str, job: str, *words: str) -> str:
        found = json.loads(stoker("launch", *words, *where, f"name={name}", f"on.job={job}", "--json"))
        return Path(found["folder"]).name

    def state(name: str) -> str:
        return str(json.loads(stoker("status", name, "--json"))["state"])

    def well(name: str) -> None:
        told = json.loads(stoker("why", name, "--json"))
        assert (told["id"], told["others"]) == (None, []), told

    asleep = [launched(f"well-{job}", job, "script=train.py") for job in KINDS]
    learner = launched("learner", "jobset", f"data.path={books}", *TRAINING)
    assert wait(lambda: json.loads(stoker("status", learner, "--json"))["step"] > 0, learner)
    well(learner)
    for name in asleep:
        assert wait(lambda name=name: state(name) == "running", name)
        well(name)
    well(learner)
    assert wait(lambda: state(learner) == "done", learner)
    well(learner)
    for name in asleep:
        stoker("stop", name)


def test_a_healthy_run_yields_none_and_a_closed_port_is_not_a_broken_name_server(
    lab, namespace, stoker, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("import time\nwhile True: time.sleep(1)\n")
    words = ["script=train.py", "on.kind=kubernetes", f"on.volume={namespace.volume}", f"on.namespace={namespace.name}"]
    words += [f"on.image=http://{lab.base}", f"on.registry=http://{REGISTRY}/tests/runs", "on.nodes=2", "on.grace=1s"]
    run = RunDir(Path(json.loads(stoker("launch", *words, "--json"))["folder"]))
    assert wait(lambda: len(json.loads(stoker("status", run.name, "--json"))["nodes"]) == 2)
    assert json.loads(stoker("why", run.name, "--json"))["id"] is None
    assert "nothing is wrong" in stoker("why", run.name)
    pods = namespace.kubectl.json("get", "pods", "-l", f"stoker.dev/run={run.name}")["items"]
    first, second = (pod["status"]["podIP"] for pod in pods)
    with dropped("-p", "tcp", "--dport", "29400", between=(first, second)):
        assert "names resolve" in caused(stoker, run, "port-closed")["cause"]
        with (
            dropped("-p", "udp", "--dport", "53", between=(first, "")),
            dropped("-p", "udp", "--dport", "53", between=(second, "")),
        ):
            caused(stoker, run, "dns-broken")
    assert wait(lambda: json.loads(stoker("why", run.name, "--json"))["id"] is None)


@pytest.mark.usefixtures("alone")
def test_a_controller_that_is_off_is_told_and_started(bed: Bed) -> None:
    home = ("-n", "kubeflow")
    fault = Fault(id="controller-off", says=("scaled to none",), types=("scale",))
    one = Planted(fault, bed.plant(fault, "pytorchjob"), "pytorchjob")
    bed.awaited(one.run, "Running")
    bed.lab.kubectl(*home, "scale", "deployment", "training-operator", "--replicas=0")
    try:
        assert wait(lambda: not bed.lab.kubectl(*home, "get", "pods", "-o", "name"))
        bed.namespace.kubectl("delete", "pods", "-l", f"stoker.dev/run={one.run.name}")
        told = asked(one, "")
        assert told.found is not None
        assert told.found.id == fault.id
        assert told.seconds < QUICK
        assert not type_remedy(bed, one, told.found.remedy)
        assert not mended(bed, one)
    finally:
        bed.lab.kubectl(*home, "scale", "deployment", "training-operator", "--replicas=1")
        bed.lab.kubectl(*home, "rollout", "status", "deployment/training-operator", f"--timeout={PATIENCE:.0f}s")


@contextlib.contextmanager
def dropped(*words: str, between: tuple[str, str]) -> Iterator[None]:
    """Packets that no node passes on, from one to the other and back."""
    one, other = between
    both = [(one, other), (other, one)] if other else [(one, "")]
    rules = [["-s", source, *(["-d", target] if target else []), *words, "-j", "DROP"] for source, target in both]
    nodes = [host.alive()[name] for name in NODES]
    for rule in rules:
        for node in nodes:
            node.run("iptables", "-I", "FORWARD", *rule)
    try:
        yield
    finally:
        for rule in rules:
            for node in nodes:
                node.run("iptables", "-D", "FORWARD", *rule)


def caused(stoker, run: RunDir, wanted: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def told() -> bool:
        found.update(json.loads(stoker("why", run.name, "--json")))
        return bool(found["id"] == wanted)

    wait(told)
    return found


@dataclass(frozen=True)
class Planted:
    fault: Fault
    run: RunDir
    job: str


def causes(bed: Bed, planted: dict[str, Planted]) -> dict[str, Told]:
    """By the names of the faults. Each is asked about as soon as it can be seen in the cluster, several at once."""
    end = time.monotonic() + PATIENCE
    told: dict[str, Future[Told]] = {}
    since: dict[str, float] = {}
    with ThreadPoolExecutor(AT_ONCE) as pool, ThreadPoolExecutor(len(planted)) as fate:
        struck = {name: fate.submit(bed.befall, one.fault, one.run, one.job) for name, one in planted.items()}
        while len(told) < len(planted) and time.monotonic() < end:
            objects = snapshot(bed.lab.kubectl)
            now = time.monotonic()
            for name, one in planted.items():
                if name in told or not struck[name].done():
                    continue
                struck[name].result()
                ours = belonging(objects, one.run)
                text = json.dumps(ours)
                if not all(re.search(word, text) for word in one.fault.shows):
                    since.pop(name, None)
                elif now - since.setdefault(name, now) >= one.fault.lasts:
                    told[name] = pool.submit(asked, one, symptom(ours))
            time.sleep(0.3)
        return {name: answer.result() for name, answer in told.items()}


def asked(one: Planted, symptom: str) -> Told:
    """Again until it is the cause, or ten seconds are over."""
    began = time.monotonic()
    while True:
        found = diagnose(one.run).causes
        took = time.monotonic() - began
        if (found and found[0].id == one.fault.id) or took > QUICK:
            return Told(found=found[0] if found else None, seconds=took, symptom=symptom)


def snapshot(kubectl: Kubectl) -> list[dict[str, Any]]:
    kinds = ",".join(["pods", "events", *(RESOURCES.get(kind, f"{kind}s") for kind in KINDS)])
    inside = kubectl.json("get", kinds, "--all-namespaces")["items"]
    return [*inside, *kubectl.json("get", "nodes")["items"], *kubectl.json("get", "namespaces")["items"]]


def belonging(objects: list[dict[str, Any]], run: RunDir) -> list[dict[str, Any]]:
    """The run's pods, job and events, its namespace, and the nodes that its pods are on."""
    place = run.place_ref()
    assert place is not None

    def ours(one: dict[str, Any]) -> bool:
        name = one.get("involvedObject", one["metadata"]).get("name", "")
        return one["metadata"].get("namespace") == place.namespace and f"{name}-".startswith(f"{run.name}-")

    found = [one for one in objects if ours(one)]
    there = {place.namespace, *(one["spec"].get("nodeName") for one in found if one["kind"] == "Pod")}
    return [*found, *(one for one in objects if one["kind"] in HOMES and one["metadata"]["name"] in there)]


def symptom(ours: list[dict[str, Any]]) -> str:
    """All that `kubectl get pods` would show of it."""
    pods = [one for one in ours if one["kind"] == "Pod"]
    text = json.dumps([one["status"] for one in pods])
    if any("deletionTimestamp" in one["metadata"] for one in pods):
        return "terminating"
    if any(one["status"].get("phase") == "Failed" for one in pods):
        return "failed"
    return "cannot pull" if re.search(PULLS[0], text) else "pending"


def type_remedy(bed: Bed, one: Planted, remedy: str) -> str:
    """As it is written, but for the words in capitals; says what went wrong."""
    fault, out = one.fault, ""
    known = COMMAND.findall(remedy)
    for word in fault.types:
        line = next((line for line in known if word in line), "")
        for name, value in fault.filled.items():
            line = re.sub(rf"\b{name}\b", lambda _, value=value: bed.filled(value), line)
        if not line:
            return f"{fault.id}: no {word} in {remedy}"
        done = subprocess.run(["bash", "-c", line], cwd=bed.folder, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"{fault.id}: {line}: {done.stderr}"
        out += done.stdout
    return "" if fault.prints in out else f"{fault.id}: {out}"


def mended(bed: Bed, one: Planted) -> str:
    """Says what is still wrong after a while."""
    if one.fault.prints:
        return ""
    try:
        wait(lambda: is_mended(bed, one), f"the mending of {one.run.name}")
    except AssertionError as e:
        return str(e)
    return ""


def is_mended(bed: Bed, one: Planted) -> bool:
    good = one.fault.good
    if good == "done":
        return diagnose(one.run).state == "done"
    if good == "cleared":
        return [cause.id for cause in diagnose(one.run).causes[:1]] != [one.fault.id]
    pods = bed.pods(one.run)
    if good == "gone":
        return not pods
    return bool(pods) and all(pod["status"]["phase"] == good for pod in pods)


def claim(name: str, **more: str) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Mi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec | more}


def wait(what: Callable[[], Any], about: str = "it") -> Any:
    end = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < end, f"{about} was waited for in vain"
        time.sleep(0.3)
    return found


@contextlib.contextmanager
def locked_registry() -> Iterator[str]:
    """The lab's registry behind a password; its address as an image's name begins with it."""
    server = ThreadingHTTPServer((LAPTOP, 0), Locked)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"{LAPTOP}:{server.server_address[1]}"
    files = [STATE / node / "registries" / address / "hosts.toml" for node in NODES]
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_text(f'server = "http://{address}"\n[host."http://{address}"]\ncapabilities = ["pull", "resolve"]\n')
    try:
        yield address
    finally:
        for file in files:
            file.unlink()
            file.parent.rmdir()
        server.shutdown()
        server.server_close()


class Locked(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.headers.get("Authorization") != f"Basic {base64.b64encode(b'me:open').decode()}":
            self._answer(401, b"", {"WWW-Authenticate": 'Basic realm="lab"', "Content-Length": "0"})
            return
        asked = urllib.request.Request(f"http://{REGISTRY}{self.path}", method=self.command)
        if accept := self.headers.get("Accept"):
            asked.add_header("Accept", accept)
        with urllib.request.urlopen(asked) as answer:
            kept = ("Content-Type", "Content-Length", "Docker-Content-Digest")
            self._answer(200, answer.read(), {name: answer.headers[name] for name in kept if answer.headers[name]})

    do_HEAD = do_GET

    def _answer(self, code: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


def put_strange_image() -> None:
    """The bare image, as one for processors that nobody here has."""
    kind = "application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.manifest.v1+json"
    asked = urllib.request.Request(f"http://{REGISTRY}/v2/lab/bare/manifests/1", headers={"Accept": kind})
    with urllib.request.urlopen(asked) as answer:
        body, digest, media = answer.read(), answer.headers["Docker-Content-Digest"], answer.headers["Content-Type"]
    entry = {"mediaType": media, "digest": digest, "size": len(body)}
    platform = {"platform": {"architecture": "s390x", "os": "linux"}}
    media = "application/vnd.docker.distribution.manifest.list.v2+json"
    index = {"schemaVersion": 2, "mediaType": media, "manifests": [entry | platform]}
    config = json.loads(body)
    for digest in [config["config"]["digest"], *(layer["digest"] for layer in config["layers"])]:
        mount(digest)
    put("manifests", entry["digest"], body, entry["mediaType"])
    put("manifests", "1", json.dumps(index).encode(), media)


def mount(digest: str) -> None:
    url = f"http://{REGISTRY}/v2/lab/strange/blobs/uploads/?mount={digest}&from=lab/bare"
    urllib.request.urlopen(urllib.request.Request(url, method="POST", data=b"")).close()


def put(what: str, name: str, body: bytes, media: str) -> None:
    url = f"http://{REGISTRY}/v2/lab/strange/{what}/{name}"
    headers = {"Content-Type": media}
    urllib.request.urlopen(urllib.request.Request(url, data=body, method="PUT", headers=headers)).close()
