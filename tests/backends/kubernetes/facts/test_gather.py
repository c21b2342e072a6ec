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
from tests.backends.kubernetes.small_cluster import Holdings, served

BORN = "2026-11-15T12:00:00Z"
NAME = "demo-abcd"
Object = dict[str, Any]
NODE: Object = {"metadata": {"name": "m"}, "spec": {}, "status": {"allocatable": {"cpu": "4"}}}
INDEX = {
    "job": "batch.kubernetes.io/job-completion-index",
    "pytorchjob": "training.kubeflow.org/replica-index",
    "vcjob": "volcano.sh/task-index",
}


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Holdings]:
    monkeypatch.chdir(tmp_path)
    holdings = Holdings(things={"namespaces": [{"metadata": {"name": "default"}}], "nodes": [NODE]})
    with served(holdings, tmp_path) as file:
        monkeypatch.setenv("KUBECONFIG", str(file))
        yield holdings


@pytest.fixture
def launched(tmp_path: Path) -> Callable[..., RunDir]:
    def launch(job: str, *words: str) -> RunDir:
        run = RunDir(tmp_path / "runs" / NAME)
        plain = ["script=x.py", "on.kind=kubernetes", f"on.job={job}", "on.image=x", "on.volume=v"]
        run.create(load(None, [*plain, *words]).spec, None)
        place = {"context": "lab", "namespace": "default", "job": job, "run": NAME, "volume": "v", "image": "x"}
        ref = ClusterPlace(kind="kubernetes", **place)  # type: ignore[arg-type]
        ref.write(run)
        consent.record_image(run, ref.image)
        return run

    return launch


def owner(spec: Object, status: Object | None = None, **labels: str) -> Object:
    meta = {"name": NAME, "namespace": "default", "creationTimestamp": BORN, "labels": labels}
    return {"metadata": meta, "spec": spec, "status": status or {}}


def pod(
    job: str, number: int, *, name: str = "", born: str = BORN, status: Object | None = None, **meta: str
) -> Object:
    about = {"name": name or f"{NAME}-{number}", "labels": {INDEX[job]: str(number)}, "creationTimestamp": born} | meta
    spec = {"nodeName": "m", "containers": [{"name": "pytorch", "image": "x", "resources": {}}]}
    return {"metadata": about, "spec": spec, "status": {"phase": "Running"} | (status or {})}


def event(kind: str, name: str, reason: str, message: str, *, type: str = "Warning") -> Object:
    about = {"kind": kind, "name": name}
    meta = {"name": f"{name}.{reason}", "creationTimestamp": BORN}
    return {"metadata": meta, "involvedObject": about, "reason": reason, "message": message, "type": type}


def first(run: RunDir) -> Finding | None:
    found = why(run).causes
    return found[0] if found else None


def unbound(**claim: Any) -> dict[str, list[Object]]:
    """A run of one pod that asks for too much, and names a claim that is not bound."""
    waits = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available: 1 Insufficient cpu."}
    one = pod("job", 0, status={"phase": "Pending", "conditions": [waits]})
    one["spec"] = {"containers": [{"name": "pytorch", "image": "x", "resources": {"requests": {"cpu": "64"}}}]}
    kept = {"metadata": {"name": "v"}, "spec": {"storageClassName": "slow"}, "status": {"phase": "Pending"}}
    kind = {"metadata": {"name": "slow"}} | claim
    things = {"jobs": [owner({"completions": 1})], "pods": [one]}
    return things | {"persistentvolumeclaims": [kept], "storageclasses": [kind]}


def test_a_run_of_a_task_for_each_node_that_waits_for_room_is_explained(there: Holdings, launched) -> None:
    task = {"name": "node", "replicas": 1, "template": {"spec": {"containers": [{"name": "pytorch", "image": "x"}]}}}
    there.things["jobs"] = [owner({"tasks": [task, task], "queue": "default"}, {"state": {"phase": "Pending"}})]
    there.things["queues"] = [{"metadata": {"name": "default"}, "status": {"state": "Open"}}]
    said = "queue resource quota insufficient: insufficient cpu"
    there.things["events"] = [event("PodGroup", f"{NAME}-1", "Unschedulable", said)]
    found = first(launched("vcjob", "on.nodes=2"))
    assert found is not None
    assert found.id == "queue-over-capacity"


def test_a_pod_that_volcano_has_not_created_yet_gets_its_future_name(there: Holdings, launched) -> None:
    asks = {"name": "pytorch", "image": "x", "resources": {"requests": {"cpu": "64"}}}
    task = {"name": "node", "replicas": 1, "template": {"spec": {"containers": [asks]}}}
    there.things["jobs"] = [owner({"tasks": [task]}, {"state": {"phase": "Pending"}})]
    there.things["queues"] = [{"metadata": {"name": "default"}, "status": {"state": "Open"}}]
    there.things["persistentvolumeclaims"] = [{"metadata": {"name": "v"}, "status": {"phase": "Bound"}}]
    there.things["events"] = [event("PodGroup", f"{NAME}-1", "Unschedulable", "1 node: 1 insufficient cpu")]
    assert (found := first(launched("vcjob"))) is not None
    assert found.id == "too-large"
    assert f"pod {NAME}-node-0 needs 64 cores" in found.cause


def test_pods_that_an_autoscaler_removes_are_no_problem(there: Holdings, launched) -> None:
    there.things["jobs"] = []
    workers = {"replicas": 2, "template": {"spec": {}}}
    running = {"conditions": [{"type": "Running", "status": "True"}]}
    there.things["pytorchjobs"] = [owner({"pytorchReplicaSpecs": {"Worker": workers}}, running)]
    some = [pod("pytorchjob", number) for number in range(2)]
    there.things["pods"] = [*some, pod("pytorchjob", 2, deletionTimestamp="2099-01-01T00:00:00Z")]
    run = launched("pytorchjob", "on.nodes=1..4")
    assert first(run) is None
    there.things["pods"][1] = pod("pytorchjob", 1, deletionTimestamp="2099-01-01T00:00:00Z")
    assert (found := first(run)) is not None
    assert found.id == "pod-deleted"


def test_the_log_of_a_replacement_pod_is_not_taken_for_the_failed_one(there: Holdings, launched) -> None:
    ended = {"exitCode": 3, "reason": "Error", "finishedAt": BORN}
    fell = {"phase": "Failed", "containerStatuses": [{"name": "pytorch", "state": {"terminated": ended}}]}
    old = pod("job", 0, name=f"{NAME}-0-old", status=fell)
    new = pod("job", 0, name=f"{NAME}-0-new", born="2026-11-15T12:01:00Z", status={"phase": "Pending"})
    there.things |= {"jobs": [owner({"completions": 1}, {"failed": 1})], "pods": [old, new]}
    there.logs = {f"{NAME}-0-old": "[0] ValueError: no such token\n", f"{NAME}-0-new": "all is well\n"}
    found = first(launched("job"))
    assert found is not None
    assert found.id == "pod-failed"
    assert f"pod {NAME}-0-old was the first to fail, with exit code 3: ValueError: no such token" in found.cause


def failed(number: int, code: int = 3, at: str = "2026-11-15T12:00:05Z") -> Object:
    ended = {"exitCode": code, "reason": "Error", "finishedAt": at}
    statuses = [{"name": "pytorch", "state": {"terminated": ended}}]
    return pod("job", number, status={"phase": "Failed", "containerStatuses": statuses})


def over(*pods: Object) -> dict[str, list[Object]]:
    conditions = [{"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": "failed"}]
    return {"jobs": [owner({"completions": len(pods)}, {"conditions": conditions})], "pods": list(pods)}


PEER = "RuntimeError: Connection closed by peer"


def test_the_pod_that_failed_by_itself_is_the_cause_however_many_others_ended_before(there: Holdings, launched) -> None:
    there.things |= over(*(failed(n) for n in range(12)), failed(12, at="2026-11-15T12:00:09Z"))
    there.logs = {f"{NAME}-{n}": f"[{n}] {PEER}\nstoker: node {n} (pod x) follows node 0 at y\n" for n in range(12)}
    there.logs[f"{NAME}-12"] = (
        f"[12] Traceback (most recent call last):\n[12]   File x\n[12] KeyError: 42\n[13] {PEER}\n"
    )
    found = first(launched("job", "on.nodes=13"))
    assert found is not None
    assert f"pod {NAME}-12 was the first to fail, with exit code 3: KeyError: 42" in found.cause


def test_a_pod_that_only_lost_its_peers_is_not_blamed(there: Holdings, launched) -> None:
    there.things |= over(failed(0), failed(1, code=203))
    there.logs = {f"{NAME}-0": f"[0] {PEER}\n"}
    found = first(launched("job", "on.nodes=2"))
    assert found is not None
    assert found.id == "pods-lost-each-other"


def test_what_a_supervisor_reports_while_all_is_well_is_no_reason(there: Holdings, launched, capsys) -> None:
    there.things |= over(failed(0))
    there.logs = {f"{NAME}-0": f"stoker: node 0 (pod {NAME}-0) leads\n"}
    run = launched("job")
    assert (found := first(run)) is not None
    assert found.id == "pod-failed-silently"
    assert main(["status", NAME]) == 0
    assert "leads" not in found.cause + capsys.readouterr().out


@pytest.mark.parametrize(
    ("job", "added", "expected", "said"),
    [
        ("pytorchjob", False, "init-image-of-the-operator", "setting of the training operator"),
        ("job", False, "injected-image", "an operator or a webhook of the cluster adds it"),
        ("job", True, "part-image", "in on.pod"),
    ],
)
def test_an_image_of_another_container_is_not_reported_as_the_runs(
    there: Holdings, launched, job: str, added: bool, expected: str, said: str
) -> None:
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "alpine:3.10"'}
    statuses = {
        "initContainerStatuses": [{"name": "init-pytorch", "state": {"waiting": waiting}}],
        "containerStatuses": [{"name": "pytorch", "state": {"waiting": {"reason": "PodInitializing"}}}],
    }
    one = pod(job, 0, status={"phase": "Pending"} | statuses)
    one["spec"]["initContainers"] = [{"name": "init-pytorch", "image": "alpine:3.10"}]
    there.things["pods"] = [one]
    spec = {"pytorchReplicaSpecs": {"Worker": {"replicas": 1}}} if job == "pytorchjob" else {"completions": 1}
    there.things[f"{job}s"] = [owner(spec)]
    words = ["on.pod={spec: {initContainers: [{name: init-pytorch, image: 'alpine:3.10'}]}}"] if added else []
    found = first(launched(job, *words))
    assert found is not None
    assert found.id == expected
    assert "cannot pull alpine:3.10, the image of" in found.cause
    assert said in found.cause
    assert "on.image" not in found.remedy


def test_an_init_container_that_fails_is_named(there: Holdings, launched) -> None:
    ended = {"name": "wait", "state": {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": BORN}}}
    there.things |= over(pod("job", 0, status={"phase": "Failed", "initContainerStatuses": [ended]}))
    assert (found := first(launched("job"))) is not None
    assert found.id == "init-failed"
    assert "init container wait of pod" in found.cause


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_a_run_that_kueue_has_suspended_is_not_resumed_by_hand(there: Holdings, launched, version: str) -> None:
    queue = {"kueue.x-k8s.io/queue-name": "team"}
    there.things["jobs"] = [owner({"completions": 1, "suspend": True}, **queue)]
    there.things["localqueues"] = [{"metadata": {"name": "team"}}]
    there.groups = {"kueue.x-k8s.io": version}
    run = launched("job", "on.queue=team")
    assert (found := first(run)) is not None
    assert found.id == "suspended-in-queue"
    assert "patch" not in found.remedy
    told = {"type": "QuotaReserved", "status": "False", "message": "couldn't assign flavors"}
    meta = {"name": "w", "ownerReferences": [{"name": NAME}]}
    there.things["workloads"] = [{"metadata": meta, "spec": {}, "status": {"conditions": [told]}}]
    assert (found := first(run)) is not None
    assert found.id == "queue-full"
    assert any(f"kueue.x-k8s.io/{version}/" in path for path in there.asked)


def test_a_suspended_run_is_explained_with_the_command_that_resumes_it(there: Holdings, launched) -> None:
    there.things["jobs"] = [owner({"completions": 1, "suspend": True})]
    assert (found := first(launched("job"))) is not None
    assert found.id == "suspended"
    assert f"""patch jobs.batch/{NAME} --type=merge -p '{{"spec": {{"suspend": false}}}}'""" in found.remedy


def test_a_job_that_volcano_has_aborted_is_suspended(there: Holdings, launched) -> None:
    task = {"replicas": 1, "template": {"spec": {"containers": []}}}
    there.things["jobs"] = [owner({"tasks": [task]}, {"state": {"phase": "Aborted", "reason": "x"}})]
    there.things["pods"] = [pod("vcjob", 0, status={"phase": "Failed"})]
    assert (found := first(launched("vcjob"))) is not None
    assert found.id == "suspended-by-volcano"
    assert f"vcctl job resume --name {NAME} --namespace default" in found.remedy


@pytest.mark.usefixtures("there")
def test_how_a_run_ended_is_known_when_its_job_is_gone(launched) -> None:
    run = launched("job")
    view = {"state": "failed", "step": 7, "reason": "the loss is not a number", "remedy": "Lower optimizer.lr"}
    run.write_seen({"asked": 0.0, "view": view})
    assert (found := first(run)) is not None
    assert (found.id, found.cause) == ("run-failed", "the loss is not a number")
    run.write_seen({"asked": 0.0, "view": view | {"state": "done", "reason": "", "remedy": ""}})
    assert first(run) is None


def test_a_claim_that_binds_late_does_not_hide_why_its_pod_fits_no_node(there: Holdings, launched) -> None:
    run = launched("job", "on.cpu=64")
    there.things |= unbound(volumeBindingMode="WaitForFirstConsumer")
    assert (found := first(run)) is not None
    assert found.id == "too-large"
    there.things |= unbound(volumeBindingMode="Immediate")
    assert (found := first(run)) is not None
    assert found.id == "claim-unbound"
    there.things["events"] = [event("PersistentVolumeClaim", "v", "ProvisioningFailed", "no more disks")]
    assert (found := first(run)) is not None
    assert found.id == "claim-refused"
    assert "no more disks" in found.cause


def test_without_the_right_to_list_storage_classes_none_is_reported_missing(there: Holdings, launched) -> None:
    there.things |= unbound()
    del there.things["persistentvolumeclaims"][0]["spec"]["storageClassName"]
    there.broken = {"storageclasses": 403}
    assert (found := first(launched("job", "on.cpu=64"))) is not None
    assert found.id == "claim-unbound"


def test_without_the_right_to_list_events_the_other_facts_are_used(there: Holdings, launched) -> None:
    there.things |= unbound(volumeBindingMode="WaitForFirstConsumer")
    there.broken = {"events": 403}
    assert (found := first(launched("job", "on.cpu=64"))) is not None
    assert found.id == "too-large"


def test_status_works_without_the_records(there: Holdings, launched, capsys: pytest.CaptureFixture[str]) -> None:
    there.things |= unbound(volumeBindingMode="Immediate")
    there.broken = {"persistentvolumeclaims": 422}
    launched("job", "on.cpu=64")
    assert main(["status", NAME]) == 0
    assert "waiting" in capsys.readouterr().out
