"""The TrainJob of a run, with a runtime of its own or one of the cluster."""

import pytest

from stoker.backends.kubernetes.jobs import job_kind
from stoker.backends.kubernetes.plan import NO_CLUSTER, plan, planned_place
from stoker.spec.errors import UserError
from stoker.spec.load import load

TRAINJOB = job_kind("trainjob")
RUNTIME = "on.runtime=torch-distributed"


def planned(tmp_path, *overrides: str):
    settings = ["data=x", "until.steps=1", "on.kind=kubernetes", "on.image=img:1", "on.volume=vol", "on.namespace=team"]
    return plan(load(None, [*settings, "on.job=trainjob", *overrides]).spec, NO_CLUSTER, tmp_path / "run-a")


def test_its_own_runtime_has_the_job_and_the_trainer_the_number_of_nodes(tmp_path) -> None:
    runtime, job = planned(tmp_path, "on.nodes=3").objects
    assert (runtime["kind"], job["kind"]) == ("TrainingRuntime", "TrainJob")
    assert job["spec"]["runtimeRef"]["kind"] == "TrainingRuntime"
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"] == "run-a"
    assert job["spec"]["trainer"]["numNodes"] == runtime["spec"]["mlPolicy"]["numNodes"] == 3
    [replicated] = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert replicated["template"]["metadata"]["labels"]["trainer.kubeflow.org/trainjob-ancestor-step"] == "trainer"
    rules = replicated["template"]["spec"]["podFailurePolicy"]["rules"]
    assert {rule["onExitCodes"]["containerName"] for rule in rules if "onExitCodes" in rule} == {"node"}


def test_on_pod_knows_the_container_by_its_usual_name(tmp_path) -> None:
    patch = "on.pod={spec: {containers: [{name: pytorch, tty: true}, {name: a-side, image: b}]}}"
    pod = TRAINJOB.template(planned(tmp_path, patch).objects)
    assert [(container["name"], container.get("tty")) for container in pod["spec"]["containers"]] == [
        ("node", True),
        ("a-side", None),
    ]


def test_the_dry_run_checks_the_runtime_and_its_job(tmp_path) -> None:
    dry_run = TRAINJOB.dry_run_objects(planned(tmp_path, "secrets=[A]").objects)
    assert [manifest["kind"] for manifest in dry_run] == ["Secret", "TrainingRuntime", "Job"]
    assert [manifest["kind"] for manifest in TRAINJOB.dry_run_objects(planned(tmp_path, RUNTIME).objects)] == [
        "TrainJob"
    ]


def test_a_runtime_of_the_cluster_is_patched_only_with_what_the_run_needs(tmp_path) -> None:
    overrides = (RUNTIME, "on.nodes=2", "on.workers=4", "on.cpu=2", "on.service_account=me", "secrets=[TOKEN]")
    submission = planned(tmp_path, *overrides)
    secret, job = submission.objects
    assert secret["kind"] == "Secret"
    assert job["spec"]["runtimeRef"] == {
        "apiGroup": "trainer.kubeflow.org",
        "kind": "ClusterTrainingRuntime",
        "name": "torch-distributed",
    }
    trainer = job["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["image"]) == (2, "img:1")
    assert trainer["command"][:4] == ["python3", "-P", "-m", "stoker.supervise"]
    assert trainer["resourcesPerNode"] == {"requests": {"cpu": "2"}}
    names = {variable["name"]: variable for variable in trainer["env"]}
    assert names["TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "run-a-env", "key": "TOKEN"}
    [patch] = job["spec"]["runtimePatches"]
    assert patch["manager"] == "stoker.dev/launch"
    [replicated] = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = replicated["template"]["spec"]["template"]
    assert pod["metadata"]["labels"]["stoker.dev/run"] == "run-a"
    assert pod["spec"]["serviceAccountName"] == "me"
    [container] = pod["spec"]["containers"]
    assert set(container) == {"name", "volumeMounts", "securityContext"}  # no more is allowed there
    place = planned_place(submission)
    assert (place.job, place.image, place.volume) == ("trainjob", "img:1", "vol")


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("on.pod={spec: {hostIPC: true}}", "on.pod has spec.hostIPC"),
        ("on.pod={spec: {containers: [{name: side, image: b}]}}", "on.pod has a container side"),
        ("on.pod={spec: {containers: [{name: pytorch, tty: true}]}}", "on.pod has tty of container pytorch"),
        (
            "on.pod={spec: {containers: [{name: pytorch, envFrom: [{configMapRef: {name: a}}]}]}}",
            "on.pod has envFrom",
        ),
        (
            "on.pod={spec: {containers: [{name: pytorch, ports: [{containerPort: 80}]}]}}",
            "on.pod has ports",
        ),
        ("on.priority=high", "on.priority sets spec.priorityClassName"),
    ],
)
def test_a_setting_that_cannot_be_patched_into_a_runtime_is_refused(tmp_path, override: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem) as caught:
        planned(tmp_path, RUNTIME, override)
    assert "leave on.runtime out" in caught.value.remedy


@pytest.mark.parametrize(
    ("conditions", "ready", "state"),
    [([], 0, "waiting"), ([], 1, "running"), (["Complete"], 1, "done"), (["Failed"], 0, "failed")],
)
def test_its_state(conditions: list[str], ready: int, state: str) -> None:
    true = [{"type": kind, "status": "True", "message": "m"} for kind in conditions]
    job = {"metadata": {}, "status": {"conditions": true, "jobsStatus": [{"name": "node", "ready": ready}]}}
    assert TRAINJOB.state(job).state == state
    assert TRAINJOB.state(job | {"metadata": {"deletionTimestamp": "x"}}).state == "stopping"
