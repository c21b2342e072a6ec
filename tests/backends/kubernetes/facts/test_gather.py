"""The facts for `why` from a few objects of a cluster."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.backends.kubernetes.place import ClusterPlace
from stoker.cli.main import main
from stoker.diagnose.finding import Finding
from stoker.observe.why import why
from stoker.rundir import RunDir, consent
from stoker.spec.load import load
from tests.backends.kubernetes.small_cluster import ClusterObjects, served

BORN = "2026-11-15T12:00:00Z"
NAME = "demo-abcd"
UID = "7d0e41a5-53f4-4a0b-8a3c-0f6f2f2f8c11"
Object = dict[str, Any]
NODE: Object = {"metadata": {"name": "m"}, "spec": {}, "status": {"allocatable": {"cpu": "4"}}}
INDEX = {
    "job": "batch.kubernetes.io/job-completion-index",
    "pytorchjob": "training.kubeflow.org/replica-index",
    "vcjob": "volcano.sh/task-index",
}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterObjects]:
    monkeypatch.chdir(tmp_path)
    objects = ClusterObjects(by_plural={"namespaces": [{"metadata": {"name": "default"}}], "nodes": [NODE]})
    with served(objects, tmp_path) as file:
        monkeypatch.setenv("KUBECONFIG", str(file))
        yield objects


@pytest.fixture
def launched(tmp_path: Path) -> Callable[..., RunDir]:
    def launch(job: str, *overrides: str) -> RunDir:
        run = RunDir(tmp_path / "runs" / NAME)
        settings = ["script=x.py", "on.kind=kubernetes", f"on.job={job}", "on.image=x", "on.volume=v"]
        run.create(load(None, [*settings, *overrides]).spec, None)
        place = {"context": "lab", "namespace": "default", "job": job, "run": NAME, "volume": "v", "image": "x"}
        place_record = ClusterPlace(kind="kubernetes", **place)  # type: ignore[arg-type]
        place_record.write(run)
        consent.record_image(run, place_record.image)
        return run

    return launch


def owner(spec: Object, status: Object | None = None, **labels: str) -> Object:
    meta = {"name": NAME, "namespace": "default", "creationTimestamp": BORN, "labels": labels}
    return {"metadata": meta, "spec": spec, "status": status or {}}


def pod(
    job: str, number: int, *, name: str = "", born: str = BORN, status: Object | None = None, **meta: str
) -> Object:
    metadata = {"name": name or f"{NAME}-{number}", "labels": {INDEX[job]: str(number)}, "creationTimestamp": born}
    spec = {"nodeName": "m", "containers": [{"name": "pytorch", "image": "x", "resources": {}}]}
    return {"metadata": metadata | meta, "spec": spec, "status": {"phase": "Running"} | (status or {})}


def event(kind: str, name: str, reason: str, message: str, *, type: str = "Warning") -> Object:
    involved = {"kind": kind, "name": name}
    meta = {"name": f"{name}.{reason}", "creationTimestamp": BORN}
    return {"metadata": meta, "involvedObject": involved, "reason": reason, "message": message, "type": type}


def first_finding(run: RunDir) -> Finding | None:
    causes = why(run).causes
    return causes[0] if causes else None


def unbound(**claim: Any) -> dict[str, list[Object]]:
    """A run of one pod that asks for too much, and names a claim that is not bound."""
    waits = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available: 1 Insufficient cpu."}
    waiting_pod = pod("job", 0, status={"phase": "Pending", "conditions": [waits]})
    waiting_pod["spec"] = {"containers": [{"name": "pytorch", "image": "x", "resources": {"requests": {"cpu": "64"}}}]}
    claim_object = {"metadata": {"name": "v"}, "spec": {"storageClassName": "slow"}, "status": {"phase": "Pending"}}
    kind = {"metadata": {"name": "slow"}} | claim
    objects = {"jobs": [owner({"completions": 1})], "pods": [waiting_pod]}
    return objects | {"persistentvolumeclaims": [claim_object], "storageclasses": [kind]}


def test_a_run_with_a_task_for_each_node_that_waits_for_room_is_explained(cluster: ClusterObjects, launched) -> None:
    task = {"name": "node", "replicas": 1, "template": {"spec": {"containers": [{"name": "pytorch", "image": "x"}]}}}
    cluster.by_plural["jobs"] = [owner({"tasks": [task, task], "queue": "default"}, {"state": {"phase": "Pending"}})]
    cluster.by_plural["queues"] = [{"metadata": {"name": "default"}, "status": {"state": "Open"}}]
    message = "queue resource quota insufficient: insufficient cpu"
    cluster.by_plural["events"] = [event("PodGroup", f"{NAME}-{UID}", "Unschedulable", message)]
    finding = first_finding(launched("vcjob", "on.nodes=2"))
    assert finding is not None
    assert finding.id == "queue-over-capacity"


def test_a_pod_that_volcano_has_not_created_yet_gets_its_future_name(cluster: ClusterObjects, launched) -> None:
    container = {"name": "pytorch", "image": "x", "resources": {"requests": {"cpu": "64"}}}
    task = {"name": "node", "replicas": 1, "template": {"spec": {"containers": [container]}}}
    cluster.by_plural["jobs"] = [owner({"tasks": [task]}, {"state": {"phase": "Pending"}})]
    cluster.by_plural["queues"] = [{"metadata": {"name": "default"}, "status": {"state": "Open"}}]
    cluster.by_plural["persistentvolumeclaims"] = [{"metadata": {"name": "v"}, "status": {"phase": "Bound"}}]
    cluster.by_plural["events"] = [event("PodGroup", f"{NAME}-{UID}", "Unschedulable", "1 node: 1 insufficient cpu")]
    assert (finding := first_finding(launched("vcjob"))) is not None
    assert finding.id == "too-large"
    assert f"pod {NAME}-node-0 needs 64 cores" in finding.cause


def test_pods_that_an_autoscaler_removes_are_no_problem(cluster: ClusterObjects, launched) -> None:
    cluster.by_plural["jobs"] = []
    workers = {"replicas": 2, "template": {"spec": {}}}
    running = {"conditions": [{"type": "Running", "status": "True"}]}
    cluster.by_plural["pytorchjobs"] = [owner({"pytorchReplicaSpecs": {"Worker": workers}}, running)]
    workers_pods = [pod("pytorchjob", number) for number in range(2)]
    cluster.by_plural["pods"] = [*workers_pods, pod("pytorchjob", 2, deletionTimestamp="2099-01-01T00:00:00Z")]
    run = launched("pytorchjob", "on.nodes=1..4")
    assert first_finding(run) is None
    cluster.by_plural["pods"][1] = pod("pytorchjob", 1, deletionTimestamp="2099-01-01T00:00:00Z")
    assert (finding := first_finding(run)) is not None
    assert finding.id == "pod-deleted"


def test_the_log_of_a_replacement_pod_is_not_taken_for_the_failed_one(cluster: ClusterObjects, launched) -> None:
    ended = {"exitCode": 3, "reason": "Error", "finishedAt": BORN}
    status = {"phase": "Failed", "containerStatuses": [{"name": "pytorch", "state": {"terminated": ended}}]}
    old = pod("job", 0, name=f"{NAME}-0-old", status=status)
    new = pod("job", 0, name=f"{NAME}-0-new", born="2026-11-15T12:01:00Z", status={"phase": "Pending"})
    cluster.by_plural |= {"jobs": [owner({"completions": 1}, {"failed": 1})], "pods": [old, new]}
    cluster.logs = {f"{NAME}-0-old": "[0] ValueError: no such token\n", f"{NAME}-0-new": "all is well\n"}
    finding = first_finding(launched("job"))
    assert finding is not None
    assert finding.id == "pod-failed"
    assert f"pod {NAME}-0-old was the first to fail, with exit code 3: ValueError: no such token" in finding.cause


def failed(number: int, code: int = 3, at: str = "2026-11-15T12:00:05Z") -> Object:
    ended = {"exitCode": code, "reason": "Error", "finishedAt": at}
    statuses = [{"name": "pytorch", "state": {"terminated": ended}}]
    return pod("job", number, status={"phase": "Failed", "containerStatuses": statuses})


def failed_job(*pods: Object) -> dict[str, list[Object]]:
    conditions = [{"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": "failed"}]
    return {"jobs": [owner({"completions": len(pods)}, {"conditions": conditions})], "pods": list(pods)}


PEER = "RuntimeError: Connection closed by peer"


def test_the_pod_that_failed_by_itself_is_the_cause_however_many_others_ended_before(
    cluster: ClusterObjects, launched
) -> None:
    cluster.by_plural |= failed_job(*(failed(n) for n in range(12)), failed(12, at="2026-11-15T12:00:09Z"))
    cluster.logs = {f"{NAME}-{n}": f"[{n}] {PEER}\nstoker: node {n} (pod x) follows node 0 at y\n" for n in range(12)}
    cluster.logs[f"{NAME}-12"] = (
        f"[12] Traceback (most recent call last):\n[12]   File x\n[12] KeyError: 42\n[13] {PEER}\n"
    )
    finding = first_finding(launched("job", "on.nodes=13"))
    assert finding is not None
    assert f"pod {NAME}-12 was the first to fail, with exit code 3: KeyError: 42" in finding.cause


def test_a_pod_that_only_lost_its_peers_is_not_blamed(cluster: ClusterObjects, launched) -> None:
    cluster.by_plural |= failed_job(failed(0), failed(1, code=203))
    cluster.logs = {f"{NAME}-0": f"[0] {PEER}\n"}
    finding = first_finding(launched("job", "on.nodes=2"))
    assert finding is not None
    assert finding.id == "pods-lost-each-other"


def test_a_routine_message_of_a_supervisor_is_no_reason(cluster: ClusterObjects, launched, capsys) -> None:
    cluster.by_plural |= failed_job(failed(0))
    cluster.logs = {f"{NAME}-0": f"stoker: node 0 (pod {NAME}-0) leads\n"}
    run = launched("job")
    assert (finding := first_finding(run)) is not None
    assert finding.id == "pod-failed-silently"
    assert main(["status", NAME]) == 0
    assert "leads" not in finding.cause + capsys.readouterr().out


@pytest.mark.parametrize(
    ("job", "in_run", "expected", "message"),
    [
        ("pytorchjob", False, "init-image-of-the-operator", "setting of the training operator"),
        ("job", False, "injected-image", "an operator or a webhook of the cluster adds it"),
        ("job", True, "part-image", "in on.pod"),
    ],
)
def test_an_image_of_another_container_is_not_reported_as_the_runs(
    cluster: ClusterObjects, launched, job: str, in_run: bool, expected: str, message: str
) -> None:
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "alpine:3.10"'}
    statuses = {
        "initContainerStatuses": [{"name": "init-pytorch", "state": {"waiting": waiting}}],
        "containerStatuses": [{"name": "pytorch", "state": {"waiting": {"reason": "PodInitializing"}}}],
    }
    waiting_pod = pod(job, 0, status={"phase": "Pending"} | statuses)
    waiting_pod["spec"]["initContainers"] = [{"name": "init-pytorch", "image": "alpine:3.10"}]
    cluster.by_plural["pods"] = [waiting_pod]
    spec = {"pytorchReplicaSpecs": {"Worker": {"replicas": 1}}} if job == "pytorchjob" else {"completions": 1}
    cluster.by_plural[f"{job}s"] = [owner(spec)]
    overrides = ["on.pod={spec: {initContainers: [{name: init-pytorch, image: 'alpine:3.10'}]}}"] if in_run else []
    finding = first_finding(launched(job, *overrides))
    assert finding is not None
    assert finding.id == expected
    assert "cannot pull alpine:3.10, the image of" in finding.cause
    assert message in finding.cause
    assert "on.image" not in finding.remedy


def test_an_init_container_that_fails_is_named(cluster: ClusterObjects, launched) -> None:
    ended = {"name": "wait", "state": {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": BORN}}}
    cluster.by_plural |= failed_job(pod("job", 0, status={"phase": "Failed", "initContainerStatuses": [ended]}))
    assert (finding := first_finding(launched("job"))) is not None
    assert finding.id == "init-failed"
    assert "init container wait of pod" in finding.cause


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_a_run_that_kueue_has_suspended_is_not_resumed_by_hand(cluster: ClusterObjects, launched, version: str) -> None:
    queue = {"kueue.x-k8s.io/queue-name": "team"}
    cluster.by_plural["jobs"] = [owner({"completions": 1, "suspend": True}, **queue)]
    cluster.by_plural["localqueues"] = [{"metadata": {"name": "team"}}]
    cluster.groups = {"kueue.x-k8s.io": version}
    run = launched("job", "on.queue=team")
    assert (finding := first_finding(run)) is not None
    assert finding.id == "suspended-in-queue"
    assert "patch" not in finding.remedy
    condition = {"type": "QuotaReserved", "status": "False", "message": "couldn't assign flavors"}
    meta = {"name": "w", "ownerReferences": [{"name": NAME}]}
    cluster.by_plural["workloads"] = [{"metadata": meta, "spec": {}, "status": {"conditions": [condition]}}]
    assert (finding := first_finding(run)) is not None
    assert finding.id == "queue-full"
    assert any(f"kueue.x-k8s.io/{version}/" in path for path in cluster.requested)


def test_a_suspended_run_is_explained_with_the_command_that_resumes_it(cluster: ClusterObjects, launched) -> None:
    cluster.by_plural["jobs"] = [owner({"completions": 1, "suspend": True})]
    assert (finding := first_finding(launched("job"))) is not None
    assert finding.id == "suspended"
    assert f"""patch jobs.batch/{NAME} --type=merge -p '{{"spec": {{"suspend": false}}}}'""" in finding.remedy


def test_a_job_that_volcano_has_aborted_is_suspended(cluster: ClusterObjects, launched) -> None:
    task = {"replicas": 1, "template": {"spec": {"containers": []}}}
    cluster.by_plural["jobs"] = [owner({"tasks": [task]}, {"state": {"phase": "Aborted", "reason": "x"}})]
    cluster.by_plural["pods"] = [pod("vcjob", 0, status={"phase": "Failed"})]
    assert (finding := first_finding(launched("vcjob"))) is not None
    assert finding.id == "suspended-by-volcano"
    assert f"vcctl job resume --name {NAME} --namespace default" in finding.remedy


@pytest.mark.usefixtures("cluster")
def test_how_a_run_ended_is_known_when_its_job_is_gone(launched) -> None:
    run = launched("job")
    view = {"state": "failed", "step": 7, "reason": "the loss is not a number", "remedy": "Lower optimizer.lr"}
    run.write_seen({"asked": 0.0, "view": view})
    assert (finding := first_finding(run)) is not None
    assert (finding.id, finding.cause) == ("run-failed", "the loss is not a number")
    run.write_seen({"asked": 0.0, "view": view | {"state": "done", "reason": "", "remedy": ""}})
    assert first_finding(run) is None


def test_a_claim_that_binds_late_does_not_hide_why_its_pod_fits_no_node(cluster: ClusterObjects, launched) -> None:
    run = launched("job", "on.cpu=64")
    cluster.by_plural |= unbound(volumeBindingMode="WaitForFirstConsumer")
    assert (finding := first_finding(run)) is not None
    assert finding.id == "too-large"
    cluster.by_plural |= unbound(volumeBindingMode="Immediate")
    assert (finding := first_finding(run)) is not None
    assert finding.id == "claim-unbound"
    cluster.by_plural["events"] = [event("PersistentVolumeClaim", "v", "ProvisioningFailed", "no more disks")]
    assert (finding := first_finding(run)) is not None
    assert finding.id == "claim-refused"
    assert "no more disks" in finding.cause


def test_without_the_right_to_list_storage_classes_none_is_reported_missing(cluster: ClusterObjects, launched) -> None:
    cluster.by_plural |= unbound()
    del cluster.by_plural["persistentvolumeclaims"][0]["spec"]["storageClassName"]
    cluster.broken = {"storageclasses": 403}
    assert (finding := first_finding(launched("job", "on.cpu=64"))) is not None
    assert finding.id == "claim-unbound"


def test_without_the_right_to_list_events_the_other_facts_are_used(cluster: ClusterObjects, launched) -> None:
    cluster.by_plural |= unbound(volumeBindingMode="WaitForFirstConsumer")
    cluster.broken = {"events": 403}
    assert (finding := first_finding(launched("job", "on.cpu=64"))) is not None
    assert finding.id == "too-large"


def test_status_works_without_the_records(
    cluster: ClusterObjects, launched, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.by_plural |= unbound(volumeBindingMode="Immediate")
    cluster.broken = {"persistentvolumeclaims": 422}
    launched("job", "on.cpu=64")
    assert main(["status", NAME]) == 0
    assert "waiting" in capsys.readouterr().out
