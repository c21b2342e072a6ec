"""Facts about a run of a thousand pods are collected quickly; and facts that a real cluster rarely shows."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from stoker.backends.kubernetes.facts.pods import newest, pod_fact
from stoker.backends.kubernetes.place import ClusterPlace
from stoker.diagnose.facts import (
    ControllerFact,
    DiagnosisFacts,
    EventFact,
    HookFact,
    LinkFact,
    PodFact,
    QueueFact,
    RecordFact,
    RunFact,
)
from stoker.diagnose.rules import findings
from stoker.observe.why import why
from stoker.rundir import RunDir, consent
from stoker.spec.load import load

HUB = (
    "pull access denied, repository does not exist or may require authorization: server message: "
    "insufficient_scope: authorization failed"
)
GHCR = "failed to authorize: failed to fetch anonymous token: unexpected status from GET request: 403 Forbidden"
BASIC = (
    "pull access denied, repository does not exist or may require authorization: authorization failed: "
    "no basic auth credentials"
)
SERVER = Path(__file__).with_name("cluster_server.py")
SECRET = "Unable to retrieve some image pull secrets (opener); attempting to pull the image may not succeed."
AGAIN = "stoker stop demo && stoker launch demo"
KUBECTL = {"kubectl": "kubectl --context c -n team", "kubectl_cluster": "kubectl --context c", "namespace": "team"}
WAITING = RunFact(
    run="demo", state="waiting", relaunch=AGAIN, in_cluster=True, kind="Job", object="jobs.batch/demo", **KUBECTL
)
RUNNING = RunFact(
    run="demo", state="running", relaunch=AGAIN, in_cluster=True, kind="Job", object="jobs.batch/demo", **KUBECTL
)
NOW = 1_800_000_000.0
BORN = "2027-01-15T07:59:00Z"
POD: dict[str, Any] = {
    "metadata": {"name": "demo-0", "creationTimestamp": BORN},
    "spec": {"nodeName": "m", "containers": [{"name": "pytorch", "image": "img"}]},
    "status": {"phase": "Failed"},
}


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cluster of a thousand pods, of which a half is too large for every node."""
    with subprocess.Popen([sys.executable, str(SERVER), "1000"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        values = {
            "current-context": "lab",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u"}}],
        }
        file = tmp_path / "kubeconfig"
        file.write_text(yaml.safe_dump(values))
        monkeypatch.setenv("KUBECONFIG", str(file))
        monkeypatch.chdir(tmp_path)
        yield
        server.terminate()


def launched(folder: Path, job: str) -> RunDir:
    """A run that was launched in that cluster."""
    run = RunDir(folder / "runs" / "demo-abcd")
    overrides = ["script=x.py", "on.kind=kubernetes", "on.image=x", "on.volume=v", "on.nodes=1000", "on.workers=1"]
    run.create(load(None, overrides).spec, None)
    place = {"context": "lab", "namespace": "default", "job": job, "run": run.name, "volume": "v", "image": "x"}
    place_record = ClusterPlace(kind="kubernetes", **place)  # type: ignore[arg-type]
    place_record.write(run)
    consent.record_image(run, place_record.image)
    return run


@pytest.mark.usefixtures("served")
def test_a_thousand_pods_are_explained_within_ten_seconds(tmp_path: Path) -> None:
    run = launched(tmp_path, "job")
    began = time.process_time()  # of our own: what else this machine does is not ours
    large = why(run).causes[0]
    assert time.process_time() - began < 10
    assert (large.id, large.count) == ("too-large", 500)
    assert (
        large.cause
        == "pod demo-abcd-500 (and 499 more) needs 512 cores, and the largest node that it may use has 96 cores"
    )
    assert "stoker stop demo-abcd && stoker launch demo-abcd on.cpu=86.4" in large.remedy


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("job", ["pytorchjob", "jobset", "trainjob", "vcjob"])
def test_a_missing_operator_is_explained_with_the_command_that_installs_it(tmp_path: Path, job: str) -> None:
    finding = why(launched(tmp_path, job)).causes[0]
    assert finding.id == "operator-missing"
    assert "kubectl apply" in finding.remedy


def first(run: RunFact, **facts: Any) -> str | None:
    causes = findings(DiagnosisFacts(run=run, **facts))
    return causes[0].id if causes else None


def pods(**fields: Any) -> dict[str, Any]:
    return {"pods": (PodFact(pod="demo-0", **fields),)}


def controller(*, wanted: int, ready: int) -> ControllerFact:
    return ControllerFact(controller="c", controller_namespace="h", wanted=wanted, ready=ready)


def event(reason: str, message: str, kind: str = "Pod", waiting: str = "") -> dict[str, Any]:
    return {"events": (EventFact(object_kind=kind, name="demo-0", reason=reason, message=message, waiting=waiting),)}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, None),
        (pods(phase="Running", running_s=500.0), None),
        (event("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 max node group size reached"), "autoscaler-limit"),
        (event("FailedScheduling", "all available instance types exceed limits for nodepool: x"), "autoscaler-limit"),
        ({"queues": (QueueFact(queue="q", state="none"),)}, "queue-not-served"),
        ({"queues": (QueueFact(queue="q", state="missing", queues="a, b"),)}, "queue-missing"),
        ({"queues": (QueueFact(queue="q", state="Closed"),)}, "queue-closed"),
        ({"queues": (QueueFact(queue="q", state="full", message="couldn't assign flavors"),)}, "queue-full"),
        ({"queues": (QueueFact(queue="q", state="Open"),)}, None),
        ({"controllers": (controller(wanted=0, ready=0),)}, "controller-off"),
        ({"controllers": (controller(wanted=1, ready=0),)}, "controller-not-ready"),
        ({"controllers": (controller(wanted=1, ready=1),)}, None),
        ({"hooks": (HookFact(webhook="h", configuration="", message="refused"),)}, "webhook-down-unseen"),
        (pods(reason="Evicted", message="The node was low on resource: memory. Threshold"), "evicted"),
        (pods(reason="Evicted", message="Pod local storage usage exceeds the total limit"), "evicted-own-disk"),
        (pods(exit_reason="OOMKilled", exit_code=137), "out-of-memory-of-the-node"),
        (pods(exit_reason="OOMKilled", exit_code=137, memory_limit="1 GiB", more_memory="2GiB"), "out-of-memory"),
        (pods(disrupted="PreemptionByScheduler"), "preempted"),
        (pods(phase="Running", machine="m", machine_state="lost"), "machine-lost"),
        (pods(phase="Running", machine="m", machine_state="gone"), "machine-gone"),
        (pods(phase="Running", machine="m", machine_state="lost", overdue_s=9.0), "machine-lost-while-stopping"),
        (pods(phase="Running", machine_state="ready", overdue_s=-9.0), "pod-deleted"),
        (pods(phase="Running", machine_state="ready", overdue_s=-9.0, disrupted="EvictionByEvictionAPI"), "pod-moved"),
        (pods(phase="Pending", scheduler_saw=False, waiting_s=30.0, scheduler="volcano"), "no-scheduler"),
        (pods(phase="Pending", waiting="ImagePullBackOff", message="401 Unauthorized"), "image-not-allowed"),
        (pods(phase="Pending", waiting="ImagePullBackOff", message="pull access denied"), "image-not-allowed"),
        (pods(phase="Pending", waiting="ErrImagePull", message=HUB), "image-not-found-or-not-allowed"),
        (pods(phase="Pending", waiting="ErrImagePull", message=GHCR), "image-not-found-or-not-allowed"),
        (pods(phase="Pending", waiting="ErrImagePull", message=BASIC), "image-not-allowed"),
        (pods(phase="Pending", waiting="ErrImagePull", message="r/img:401: not found"), "image-not-found"),
        (pods(phase="Pending", waiting="ErrImagePull", message="lookup r: no such host"), "registry-unreachable"),
        (pods(message="exec /usr/bin/python3: exec format error"), "image-platform"),
        (event("FailedToRetrieveImagePullSecret", SECRET, waiting="ImagePullBackOff"), "pull-secret-missing"),
        (event("FailedToRetrieveImagePullSecret", SECRET, waiting="ContainerCreating"), None),
        (event("FailedMount", 'secret "s" not found'), "mount-missing-secret"),
        (event("FailedMount", 'MountVolume.SetUp failed for volume "v" : mount failed: exit 32'), "mount-failed"),
        (event("FailedAttachVolume", 'Multi-Attach error for volume "v"'), "volume-attached-elsewhere"),
        (event("FailedCreatePodSandBox", "failed to set up network"), "network-not-ready"),
    ],
)  # fmt: skip
def test_the_reasons_of_a_waiting_run_are_distinguished(facts: dict[str, Any], expected: str | None) -> None:
    assert first(WAITING, **facts) == expected


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2", "quota"),
        ("failed quota: q: must specify requests.cpu", "quota-wants-numbers"),
        ('error looking up service account team/bot: serviceaccount "bot" not found', "service-account-missing"),
        ("no PriorityClass with name high was found", "priority-missing"),
        ('violates PodSecurity "restricted:latest": runAsNonRoot', "pod-security"),
        ("something that nobody has foreseen", "pod-refused"),
    ],
)
def test_the_reasons_why_pods_cannot_be_created_are_distinguished(message: str, expected: str) -> None:
    without_pods = RunFact(run="demo", state="waiting", relaunch=AGAIN, in_cluster=True, missing=1, **KUBECTL)
    assert (
        first(without_pods, **event("FailedCreate", f"Error creating: pods is forbidden: {message}", "Job")) == expected
    )
    assert first(RUNNING, **event("FailedCreate", f"Error creating: pods is forbidden: {message}", "Job")) is None


@pytest.mark.parametrize(
    ("answer", "names", "expected"),
    [
        ("silent", "ok", "port-closed"),
        ("silent", "broken", "dns-broken"),
        ("open", "broken", "dns-down"),
        ("refused", "ok", "port-refused"),
        ("unreachable", "ok", "unreachable-pair"),
        ("open", "ok", "nodes-missing"),
    ],
)
def test_a_closed_port_and_a_broken_dns_server_are_distinguished(answer: str, names: str, expected: str) -> None:
    link = LinkFact(node=1, pod="demo-1", leader="node 0", address="1.2.3.4", port=29400, answer=answer, dns=names)
    record = RecordFact(missing_nodes="1", present_nodes=1, needed_nodes="2")
    assert first(RUNNING, record=record, links=(link,)) == expected


def test_a_run_that_is_being_stopped_has_no_problem_until_a_pod_is_overdue() -> None:
    stopping = RunFact(run="demo", state="stopping", deleting=True, relaunch=AGAIN, in_cluster=True, **KUBECTL)
    assert first(stopping, **pods(phase="Running", overdue_s=-60.0)) == "stopping"
    assert first(stopping, **pods(phase="Running", overdue_s=30.0)) == "pod-slow-to-end"
    assert first(stopping, **pods(phase="Running", overdue_s=30.0, finalizers="example.com/x")) == "pod-stuck"
    assert first(stopping, **pods(phase="Running", overdue_s=30.0, finalizers="x", alive=True)) == "pod-slow-to-end"


def test_the_finalizer_that_every_pod_of_a_job_has_holds_none() -> None:
    metadata = {"finalizers": ["batch.kubernetes.io/job-tracking", "example.com/x"]}
    assert fact(POD | {"metadata": POD["metadata"] | metadata}).finalizers == "example.com/x"


@pytest.mark.parametrize("obstacle", ["selector", "taint", "cordon", "size"])
def test_an_autoscaler_at_its_limit_does_not_hide_another_obstacle(obstacle: str) -> None:
    limit = event("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 max node group size reached")
    pod = pods(phase="Pending", unscheduled="0/1", obstacle=obstacle, fix="x", example="m")
    assert first(WAITING, **limit, **pod) != "autoscaler-limit"
    assert first(WAITING, **limit, **pods(phase="Pending", unscheduled="0/1", obstacle="room")) == "autoscaler-limit"


def fact(pod: dict[str, Any], *before: dict[str, Any]) -> PodFact:
    return pod_fact(pod, before, node=0, container="pytorch", now=NOW, machines=None)


def with_state(state: dict[str, Any], phase: str = "Running") -> dict[str, Any]:
    status = {"phase": phase, "containerStatuses": [{"name": "pytorch", "state": state, "restartCount": 0}]}
    return POD | {"status": status}


def test_the_failure_of_the_previous_pod_counts_until_this_one_is_stable() -> None:
    killed = with_state({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}, "Failed")
    assert fact(killed).exit_reason == "OOMKilled"
    fresh = with_state({"running": {"startedAt": "2027-01-15T07:59:30Z"}})
    assert fact(fresh, killed).exit_reason == "OOMKilled"
    stable = with_state({"running": {"startedAt": "2027-01-15T06:00:00Z"}})
    assert fact(stable, killed).exit_reason == ""


def test_the_newest_pod_of_each_node_stands_for_it() -> None:
    def pod(name: str, node: int, born: str) -> dict[str, Any]:
        return POD | {"metadata": {"name": name, "creationTimestamp": born, "node": node}}

    pods_of_nodes = [pod("a", 1, "2026-01-01"), pod("b", 0, "2026-01-01"), pod("c", 1, "2026-01-02")]
    groups = newest(pods_of_nodes, lambda pod: int(pod["metadata"]["node"]))
    assert [(pod["metadata"]["name"], len(old)) for pod, old in groups] == [("b", 0), ("c", 1)]
