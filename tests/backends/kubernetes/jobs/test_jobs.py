"""The manifests and states of all kinds of jobs."""

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.backends.backend import Submission
from stoker.backends.kubernetes import manifest
from stoker.backends.kubernetes.jobs import job_kind, kind_name
from stoker.backends.kubernetes.plan import NO_CLUSTER, plan, planned_place
from stoker.backends.kubernetes.pod import merged
from stoker.spec.errors import UserError
from stoker.spec.load import load
from stoker.spec.on import cluster_name

KINDS = ["job", "jobset", "pytorchjob", "trainjob", "vcjob"]


def planned(job: str, *overrides: str, run: str = "demo-abcd", script: bool = False) -> Submission:
    subject = ["script=/home/me/train.py", "args=[a, $(B)]"] if script else ["data=x", "until.steps=1"]
    settings = ["on.kind=kubernetes", f"on.job={job}", "on.image=img:1", "on.volume=vol", "on.namespace=team"]
    return plan(load(None, [*subject, *settings, *overrides]).spec, NO_CLUSTER, Path("runs") / run)


def pods(submission: Submission) -> list[dict[str, Any]]:
    """One for each of its templates."""
    replicas = submission.objects[-1]["spec"].get("pytorchReplicaSpecs")
    if replicas:
        return [role["template"] for role in replicas.values()]
    return [job_kind(kind_name(submission.objects[-1])).template(submission.objects)]


def container(pod: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = pod["spec"]["containers"][0]
    return result


@pytest.mark.parametrize("job", KINDS)
def test_a_plan_is_the_same_each_time(job: str) -> None:
    overrides = ("on.nodes=1..3", "secrets=[A]", "on.instance=p4d.24xlarge")
    assert planned(job, *overrides) == planned(job, *overrides)


@pytest.mark.parametrize("job", KINDS)
def test_every_pod_runs_one_supervisor_in_the_usual_container(job: str) -> None:
    for pod in pods(planned(job, "on.nodes=2", "on.workers=4")):
        trainer = container(pod)
        assert trainer["name"] == job_kind(job).CONTAINER
        head = ["python3", "-P", "-m", "stoker.supervise", "/stoker/runs/demo-abcd", "--workers", "4", "--nodes", "2"]
        assert trainer["command"][:9] == head
        assert {"name": "stoker", "mountPath": "/stoker"} in trainer["volumeMounts"]
        variables = {variable["name"]: variable for variable in trainer["env"]}
        assert variables["STOKER_ADDRESS"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
        assert variables["STOKER_PORT"]["value"] == "29400"


@pytest.mark.parametrize("job", KINDS)
@pytest.mark.parametrize("scheme", ["http://", "https://"])
def test_the_scheme_of_a_registry_is_not_part_of_a_pods_image(job: str, scheme: str) -> None:
    submission = planned(job, f"on.image={scheme}10.0.0.1:5000/team/base:1")
    assert {container(pod)["image"] for pod in pods(submission)} == {"10.0.0.1:5000/team/base:1"}


@pytest.mark.parametrize("job", KINDS)
@pytest.mark.parametrize(("override", "place"), [("on.registry=team/runs", "/app/train.py"), ("", "/home/me/train.py")])
def test_a_script_has_its_path_in_the_image_and_literal_arguments(job: str, override: str, place: str) -> None:
    command = container(pods(planned(job, *filter(None, [override]), script=True))[0])["command"]
    assert command[command.index("--") :] == ["--", "python3", place, "a", "$$(B)"]


@pytest.mark.parametrize("job", KINDS)
def test_the_supervisor_has_the_variables_of_the_run_too(job: str) -> None:
    overrides = ["env.PYTHONPATH=/lent", "env.OMP_NUM_THREADS=3", "env.TEXT=$(HOME)", "env.STOKER_PORT=1", "on.cpu=8"]
    for pod in pods(planned(job, *overrides)):
        variables = {variable["name"]: variable.get("value") for variable in container(pod)["env"]}
        assert variables["PYTHONPATH"] == "/lent"
        assert variables["OMP_NUM_THREADS"] == "3"
        assert variables["TEXT"] == "$$(HOME)", "Kubernetes would insert a variable"
        assert variables["STOKER_PORT"] == "29400"
        assert len(variables) == len(container(pod)["env"]), "each of them once"


@pytest.mark.parametrize("job", KINDS)
def test_a_network_policy_admits_only_the_pods_of_the_run(job: str) -> None:
    assert not any(manifest["kind"] == "NetworkPolicy" for manifest in planned(job).objects)
    submission = planned(job, "on.network_policy=true")
    policy = submission.objects[0]
    assert policy["kind"] == "NetworkPolicy"
    chosen = policy["spec"]["podSelector"]["matchLabels"]
    assert policy["spec"] == {
        "podSelector": {"matchLabels": chosen},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": {"matchLabels": chosen}}]}],
    }
    for pod in pods(submission):
        assert chosen.items() <= pod["metadata"]["labels"].items()
    assert policy in job_kind(job).dry_run_objects(submission.objects)


def test_a_policy_that_would_do_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="network_policy has no effect with hostNetwork"):
        planned("job", "on.network_policy=true", "on.pod={spec: {hostNetwork: true}}")


def test_a_plain_job_restarts_what_asks_for_it_and_ends_at_what_is_fatal() -> None:
    spec = planned("job", "on.nodes=3").objects[-1]["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 3, 3)
    rules = spec["podFailurePolicy"]["rules"]
    assert [rule["action"] for rule in rules] == ["Ignore", "Ignore", "FailJob"]
    assert rules[1]["onExitCodes"]["values"] == [203]
    assert rules[2]["onExitCodes"]["values"] == list(range(1, 128))
    assert "successPolicy" not in spec


def test_a_range_of_nodes_is_done_when_one_is() -> None:
    spec = planned("job", "on.nodes=1..8").objects[-1]["spec"]
    assert (spec["completions"], spec["successPolicy"]) == (8, {"rules": [{"succeededCount": 1}]})


def test_a_pytorchjob_of_fixed_size_has_a_master_and_workers() -> None:
    spec = planned("pytorchjob", "on.nodes=3", "on.workers=2").objects[-1]["spec"]
    replicas = spec["pytorchReplicaSpecs"]
    assert {name: role["replicas"] for name, role in replicas.items()} == {"Master": 1, "Worker": 2}
    assert all(role["restartPolicy"] == "ExitCode" for role in replicas.values())
    assert spec["nprocPerNode"] == "2"
    assert "$(PET_NODE_RANK)" in container(replicas["Worker"]["template"])["command"]
    assert list(planned("pytorchjob").objects[-1]["spec"]["pytorchReplicaSpecs"]) == ["Master"]


def test_an_elastic_pytorchjob_has_only_workers_so_that_no_init_image_is_pulled() -> None:
    spec = planned("pytorchjob", "on.nodes=2..5").objects[-1]["spec"]
    assert list(spec["pytorchReplicaSpecs"]) == ["Worker"]
    assert spec["elasticPolicy"] == {"minReplicas": 2, "maxReplicas": 5, "rdzvBackend": "c10d"}


def test_an_autoscaled_pytorchjob_has_the_metric_for_its_autoscaler() -> None:
    overrides = ("on.nodes=1..64", "on.cpu=8", "on.autoscale={cpu: 90}")
    policy = planned("pytorchjob", *overrides).objects[-1]["spec"]["elasticPolicy"]
    target = {"type": "Utilization", "averageUtilization": 90}
    assert policy["metrics"] == [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]


def test_secrets_are_never_in_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "hunter2")
    submission = planned("job", "secrets=[TOKEN]")
    assert submission.objects[0]["stringData"] == {"TOKEN": "***"}
    assert "hunter2" not in manifest.text(submission.objects) + repr(submission)
    assert container(pods(submission)[0])["envFrom"] == [{"secretRef": {"name": "demo-abcd-env"}}]


def test_manifests_go_into_a_folder_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write to .*/file: File exists\. Name another folder"):
        manifest.write(planned("job").objects, tmp_path / "file")


def test_the_pod_patch_reaches_everything() -> None:
    patch = "on.pod={spec: {hostIPC: true, containers: [{name: pytorch, tty: true}, {name: side, image: b}]}}"
    spec = pods(planned("job", patch))[0]["spec"]
    assert spec["hostIPC"]
    assert [entry["name"] for entry in spec["containers"]] == ["pytorch", "side"]
    assert spec["containers"][0]["image"] == "img:1"
    assert spec["containers"][0]["tty"]


def test_a_patch_deletes_with_null_appends_objects_and_replaces_plain_lists() -> None:
    base = {"a": 1, "words": ["x", "y"], "things": [{"key": "k"}], "inside": {"b": 2, "c": 3}}
    patch = {"a": None, "words": ["z"], "things": [{"key": "l"}], "inside": {"b": {"x": 1}}}
    result = merged(base, patch)
    assert result == {"words": ["z"], "things": [{"key": "k"}, {"key": "l"}], "inside": {"b": {"x": 1}, "c": 3}}
    assert base["inside"] == {"b": 2, "c": 3}


def test_a_volume_may_be_mounted_at_several_places() -> None:
    mounts = [{"name": "stoker", "mountPath": path, "subPath": path[1:]} for path in ("/data", "/models")]
    patch = {"spec": {"containers": [{"name": "pytorch", "volumeMounts": [*mounts, {"mountPath": "/data", "a": 1}]}]}}
    mounted = container(pods(planned("job", f"on.pod={json.dumps(patch)}"))[0])["volumeMounts"]
    assert {"name": "stoker", "mountPath": "/stoker"} in mounted
    assert [mount["mountPath"] for mount in mounted] == ["/stoker", "/dev/shm", "/data", "/models"]
    assert mounted[2] == mounts[0] | {"a": 1}


@pytest.mark.parametrize("job", KINDS)
@pytest.mark.parametrize(
    ("patch", "missing"),
    [
        ("{spec: null}", "the container 'pytorch'"),
        ("{spec: 5}", "the container 'pytorch'"),
        ("{spec: {containers: null}}", "the container 'pytorch'"),
        ("{spec: {containers: [pytorch]}}", "the container 'pytorch'"),
        ("{spec: {containers: [{name: pytorch, image: null}]}}", "an image"),
        ("{spec: {volumes: null}}", "the volume 'stoker' of a claim"),
        ("{spec: {volumes: [{name: stoker, persistentVolumeClaim: null}]}}", "the volume 'stoker' of a claim"),
        ("{spec: {containers: [{name: pytorch, volumeMounts: null}]}}", "the volume 'stoker' at /stoker"),
        ("{metadata: {labels: {stoker.dev/run: other}}}", "Stoker's labels"),
        ("{metadata: {labels: null}}", "Stoker's labels"),
        ("{metadata: 1}", "Stoker's labels"),
    ],
)
def test_a_patch_that_removes_what_a_run_needs_is_refused(job: str, patch: str, missing: str) -> None:
    with pytest.raises(UserError, match=f"on.pod leaves the pods without {missing}"):
        planned(job, f"on.pod={patch}")


@pytest.mark.parametrize("job", KINDS)
@pytest.mark.parametrize("field", ["containers", "initContainers"])
@pytest.mark.parametrize("name", ["", "name: 5, "])
def test_a_container_that_has_no_name_is_refused(job: str, field: str, name: str) -> None:
    with pytest.raises(UserError, match=f"on.pod has an entry of spec.{field} without a name. Name it"):
        planned(job, f"on.pod={{spec: {{{field}: [{{{name}image: busybox}}]}}}}")


@pytest.mark.parametrize("job", KINDS)
def test_where_a_run_will_be_is_read_from_its_plan(job: str) -> None:
    place = planned_place(planned(job), context="lab")
    assert (place.context, place.namespace, place.job, place.run) == ("lab", "team", job, "demo-abcd")
    assert (place.volume, place.image) == ("vol", "img:1")


def test_names_fit_into_a_cluster() -> None:
    assert cluster_name("My_GPT.2") == "my-gpt-2"
    assert cluster_name("2024") == "run-2024"
    assert cluster_name("x" * 100) == "x" * 40
    with pytest.raises(UserError, match="'Big' is not a valid name for a run in a cluster"):
        planned("job", run="Big")


@pytest.mark.parametrize(
    ("override", "problem"), [("on.image=null", "on.image is missing"), ("on.volume=null", "on.volume is")]
)
def test_every_pod_requests_what_it_needs(override: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        planned("job", override)


@pytest.mark.parametrize(
    ("conditions", "ready", "state"),
    [
        ([], 0, "waiting"),
        ([], 2, "running"),
        ([("FailureTarget", "bad")], 1, "failed"),
        ([("SuccessCriteriaMet", "")], 1, "done"),
        ([("Complete", "")], 0, "done"),
    ],
)
def test_the_state_of_a_plain_job(conditions: list[tuple[str, str]], ready: int, state: str) -> None:
    true = [{"type": kind, "status": "True", "message": message} for kind, message in conditions]
    job = {"metadata": {}, "status": {"conditions": true, "ready": ready}}
    assert job_kind("job").state(job).state == state
    assert job_kind("job").state(job | {"metadata": {"deletionTimestamp": "x"}}).state == "stopping"


@pytest.mark.parametrize(
    ("kinds", "state"),
    [
        ([], "waiting"),
        (["Created"], "waiting"),
        (["Created", "Running"], "running"),
        (["Created", "Restarting"], "restarting"),
        (["Created", "Running", "Succeeded"], "done"),
        (["Created", "Failed"], "failed"),
    ],
)
def test_the_state_of_a_pytorchjob(kinds: list[str], state: str) -> None:
    true = [{"type": kind, "status": "True", "message": "m"} for kind in kinds]
    assert job_kind("pytorchjob").state({"metadata": {}, "status": {"conditions": true}}).state == state


def test_a_pod_knows_its_node() -> None:
    pod_of_job = {"metadata": {"annotations": {"batch.kubernetes.io/job-completion-index": "3"}}, "spec": {}}
    assert job_kind("job").node(pod_of_job) == 3
    assert job_kind("job").node({"metadata": {}, "spec": {}}) is None
    labels = {"training.kubeflow.org/replica-index": "1"}
    worker: dict[str, Any] = {"metadata": {"labels": labels}, "spec": {"containers": [{"env": []}]}}
    assert job_kind("pytorchjob").node(worker) == 1
    worker["spec"]["containers"][0]["env"] = [{"name": "PET_NODE_RANK", "value": "2"}]
    assert job_kind("pytorchjob").node(worker) == 2
