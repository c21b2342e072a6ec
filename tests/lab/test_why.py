"""Faults made with kubectl or on a node, each told by its cause within ten seconds, with a remedy that works."""

import base64
import contextlib
import json
import os
import re
import shlex
import subprocess
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
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
    words: tuple[str, ...] = ()
    pod: dict[str, Any] = field(default_factory=dict)
    naps: bool = True
    """Its pods sleep in the bare image, once they start."""
    after: str = ""
    """kubectl's words for what befalls it when it is there."""
    mend: str = "kubectl"
    """Which command of the remedy is typed; none where time or somebody else mends it."""
    filled: dict[str, str] = field(default_factory=dict)
    """What stands for the words in capitals."""
    good: str = "Running"
    """Its pods, when it is mended."""
    home: str = ""
    """A namespace of its own, with that trouble."""
    kind: str = ""
    """The one that it befalls alone."""
    never: tuple[str, ...] = ()
    """Kinds that it cannot befall, or of which nothing is left to tell it by: a plain job then."""


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
    Fault(id="too-large", says=("64 cores", "largest node"), words=("on.cpu=64",), naps=False, mend="stoker", good=""),
    Fault(
        id="no-room",
        says=("8 nvidia.com/gpu free",),
        words=(
            "on.nodes=2",
            "on.gpus=8",
            "on.selectors={kubernetes.io/hostname: NAME-00000}",
            f"on.tolerations=['{WORKERS}']",
        ),
        mend="",
    ),
    Fault(id="no-label", says=("team=NAME",), words=("on.selectors={team: NAME}",), mend="kubectl"),
    Fault(id="taint", says=(f"taint {WORKERS}",), words=(f"on.selectors={{{WORKERS}: NAME}}",), naps=False, mend=""),
    Fault(
        id="cordoned",
        says=("closed to new pods",),
        words=(
            "on.selectors={kubernetes.io/hostname: NAME-00001}",
            f"on.tolerations=['{WORKERS}']",
        ),
    ),
    Fault(id="claim-missing", says=("claim nothing is not there",), words=("on.volume=nothing",), mend="claim"),
    Fault(id="claim-class-missing", says=("storage class nonesuch",), words=("on.volume=classless",), mend=""),
    Fault(id="claim-without-class", says=("names no storage class",), words=("on.volume=bare",), mend=""),
    Fault(
        id="image-not-found",
        says=("no image", "lab/nothing:1"),
        pod=container(image=f"{REGISTRY}/lab/nothing:1"),
        mend="",
    ),
    Fault(id="image-name", says=("Not/A_Name",), pod=container(image="Not/A_Name"), mend=""),
    Fault(id="image-platform", says=("processors",), pod=container(image=f"{REGISTRY}/lab/strange:1"), mend=""),
    Fault(
        id="image-not-allowed", says=("does not let",), pod=container(image="LOCKED/lab/bare:1"), mend=""
    ),
    Fault(
        id="pull-secret-missing",
        says=("secret opener",),
        words=("on.image_secrets=[opener]",),
        pod=container(image="LOCKED/lab/bare:1", **NAP),
        filled={"REGISTRY": "LOCKED", "USER": "me", "PASSWORD": "open"},
    ),
    Fault(id="image-without-python", says=("no python3",), pod=container(image="BARE"), naps=False, mend=""),
    Fault(id="service-account-missing", says=("account nobody",), words=("on.service_account=nobody",)),
    Fault(
        id="secret-missing",
        says=("secret hidden",),
        pod=container(envFrom=[{"secretRef": {"name": "hidden"}}]),
        filled={"NAME": "A", "VALUE": "b"},
    ),
    Fault(
        id="mount-missing",
        says=("configmap settings",),
        pod=merged(
            container(volumeMounts=[{"name": "more", "mountPath": "/more"}]),
            {"spec": {"volumes": [{"name": "more", "configMap": {"name": "settings"}}]}},
        ),
    ),
    Fault(id="suspended", says=("suspended",), after="suspend", never=("vcjob",)),
    Fault(
        id="pod-failed",
        says=("ValueError: no such token", "exit code 3"),
        words=("on.nodes=1..2",),
        pod=python(CULPRIT),
        naps=False,
        mend="",
    ),
    Fault(
        id="out-of-memory",
        says=("48 MiB of memory",),
        words=("on.memory=48MiB",),
        never=TIDY,
        pod=python(GREEDY),
        naps=False,
        mend="stoker",
        good="",
    ),
    Fault(
        id="evicted-own-disk",
        says=("own limit",),
        never=TIDY,
        pod=python(MESSY, resources={"limits": {"ephemeral-storage": "5Mi"}}),
        naps=False,
        mend="",
    ),
    Fault(id="pod-deadline", says=("took longer",), never=TIDY, pod={"spec": {"activeDeadlineSeconds": 1}}, mend=""),
    Fault(id="pod-deleted", says=("somebody deleted",), words=("on.grace=1h",), after="delete", mend=""),
    Fault(id="pod-stuck", says=("finalizer",), after="hold", mend="kubectl", good="gone"),
    Fault(id="quota", says=("quota tight", "requests.cpu=100m"), words=("on.cpu=0.1",), home="quota", mend="quota"),
    Fault(id="webhook-down", says=("webhook why.example.com",), home="webhook", never=("vcjob",)),  # Volcano gives up
    Fault(id="namespace-ending", says=("is being deleted",), home="ending", mend=""),
    Fault(
        id="queue-over-capacity",
        says=("insufficient cpu",),
        words=("on.cpu=0.2", "on.queue=NAME"),
        kind="vcjob",
        mend="",
    ),
    Fault(
        id="machine-gone",
        says=("no longer in the cluster",),
        words=("on.selectors={kubernetes.io/hostname: NAME-00002}", f"on.tolerations=['{WORKERS}']"),
        after="unplug",
        mend="",
    ),
    Fault(
        id="machine-lost",
        says=("does not answer",),
        words=("on.selectors={kubernetes.io/hostname: NAME-silent}", f"on.tolerations=['{WORKERS}']"),
        after="silence",
        mend="",
    ),
    Fault(id="job-gone", says=("not in the cluster",), after="gone", mend=""),
]  # fmt: skip
PAIRS = [  # look-alikes: pending alike, failing alike, gone alike
    ("too-large", "no-room"),
    ("no-label", "taint"),
    ("taint", "cordoned"),
    ("image-not-found", "image-not-allowed"),
    ("image-not-allowed", "pull-secret-missing"),
    ("claim-missing", "claim-class-missing"),
    ("out-of-memory", "evicted-own-disk"),
    ("quota", "no-room"),
    ("pod-deleted", "pod-stuck"),
    ("pod-deleted", "machine-gone"),
]


@pytest.fixture
def stoker(lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> Callable[..., str]:
    monkeypatch.setenv("KUBECONFIG", str(lab.kubeconfig))
    monkeypatch.setenv("PATH", f"{lab.kubectl.program.parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('hello')\n")

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
        pod = merged(container(image=self.lab.bare, **NAP), fault.pod) if fault.naps else fault.pod
        text = json.dumps(pod).replace("LOCKED", self.locked).replace("BARE", self.lab.bare)
        words = ["script=train.py", f"name={name}", "on.kind=kubernetes", f"on.job={job}", "on.grace=1s"]
        words += [f"on.namespace={home.name}", f"on.volume={self.namespace.volume}", f"on.pod={text}"]
        words += [f"on.image=http://{self.lab.base}", f"on.registry=http://{REGISTRY}/tests/runs"]
        words += [word.replace("NAME", self.nodes) for word in fault.words]
        spec = load(None, words).spec
        run = RunDir(self.folder / "runs" / name)
        run.create(spec, None)
        planned = plan(with_image(spec), replace(NO_CLUSTER, namespace=home.name), run.path)
        for one in planned.objects:
            home.kubectl.apply(one)
        context = yaml.safe_load(self.lab.kubeconfig.read_text())["current-context"]
        run.write_place(place_of(planned, context=context))
        return run

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


@pytest.mark.parametrize(
    "kinds", [list(KINDS), *(pytest.param([kind], marks=pytest.mark.soak) for kind in KINDS)], ids="+".join
)
def test_each_fault_is_told_by_its_cause_and_its_remedy_works(kinds: list[str], bed: Bed, stoker) -> None:
    planted = {}
    for n, fault in enumerate(FAULTS):
        planted[fault.id] = (fault, bed.plant(fault, kinds_of(fault, n, kinds)))
    for n, (fault, run) in enumerate(planted.values()):
        bed.befall(fault, run, kinds_of(fault, n, kinds))
    told = causes({name: run for name, (_, run) in planted.items()})
    wrong = [f"{name}: {found}" for name, found in told.items() if found is None or found.id != name]
    for name, (fault, _) in planted.items():
        cause = told[name].cause if told[name] else ""
        wrong += [f"{name}: {cause}" for word in fault.says if word.replace("NAME", bed.nodes) not in cause]
    assert not wrong, "\n".join(wrong)
    assert all(told[one].cause != told[other].cause for one, other in PAIRS)
    typed = [(fault, run) for name, (fault, run) in planted.items() if type_remedy(bed, fault, told[name].remedy)]
    late = []
    for fault, run in typed:
        try:
            await_mending(bed, fault, run)
        except AssertionError as e:
            late.append(str(e))
    assert not late, late
    for fault, run in planted.values():
        if fault.mend == "stoker":
            type_stoker(stoker, run, told[fault.id].remedy)


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
    fault = Fault(id="controller-off", says=("scaled to none",), kind="pytorchjob")
    run = bed.plant(fault, "pytorchjob")
    bed.awaited(run, "Running")
    bed.lab.kubectl(*home, "scale", "deployment", "training-operator", "--replicas=0")
    try:
        assert wait(lambda: not bed.lab.kubectl(*home, "get", "pods", "-o", "name"))
        bed.namespace.kubectl("delete", "pods", "-l", f"stoker.dev/run={run.name}")
        [found] = causes({fault.id: run}).values()
        assert found is not None
        assert found.id == fault.id
        type_remedy(bed, fault, found.remedy)
        await_mending(bed, fault, run)
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


def causes(runs: dict[str, RunDir]) -> dict[str, Finding | None]:
    """What each is told to suffer from, by its name, once that is the one; else what it was told last."""
    end = time.monotonic() + PATIENCE
    told: dict[str, Finding | None] = {}
    seconds: list[float] = []

    def look(name: str) -> None:
        began = time.monotonic()
        found = diagnose(runs[name]).causes
        took = time.monotonic() - began
        seconds.append(took)
        told[name] = found[0] if found else None

    with ThreadPoolExecutor(4) as pool:
        while late := [name for name in runs if not (found := told.get(name)) or found.id != name]:
            if time.monotonic() > end:
                break
            list(pool.map(look, late))
    assert median(seconds) < QUICK  # of all: this machine may be busy with others
    return told


def type_remedy(bed: Bed, fault: Fault, remedy: str) -> bool:
    """True when kubectl was told something."""
    if fault.mend == "claim":
        bed.namespace.kubectl.apply(claim("nothing"))
        return True
    if fault.mend == "quota":
        line = re.search(r"kubectl [^;]*", remedy.replace("VALUE", "1"))
        assert line, remedy
        subprocess.run(shlex.split(line[0]), check=True)
        return True
    if not fault.mend.startswith("kubectl"):
        return False
    line = re.search(rf"{fault.mend}[^;(]*", remedy)
    assert line, remedy
    text = line[0].strip()
    for word, value in fault.filled.items():
        text = re.sub(rf"\b{word}\b", value.replace("LOCKED", bed.locked), text)
    done = subprocess.run(shlex.split(text), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{text}: {done.stderr}"
    return True


def await_mending(bed: Bed, fault: Fault, run: RunDir) -> None:
    if fault.good == "gone":
        assert wait(lambda: not bed.pods(run), f"the end of {run.name}")
    else:
        bed.awaited(run, fault.good)


def type_stoker(stoker, run: RunDir, remedy: str) -> None:
    [line] = re.findall(r"stoker stop \S+ && stoker launch [^;]*", remedy)
    for command in line.split(" && "):
        stoker(*command.split()[1:])
    assert wait(lambda: json.loads(stoker("status", run.name, "--json"))["state"] == "done")


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
