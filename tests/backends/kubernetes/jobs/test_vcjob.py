"""The Volcano Job of a run: a gang in a queue."""

import pytest

from stoker.backends.kubernetes.jobs import job_kind
from stoker.backends.kubernetes.plan import NO_CLUSTER, plan
from stoker.kube.kinds import key_of
from stoker.spec.errors import UserError
from stoker.spec.load import load

VCJOB = job_kind("vcjob")


def manifests(tmp_path, *overrides: str) -> list[dict]:
    settings = ["data=x", "until.steps=1", "on.kind=kubernetes", "on.image=img:1", "on.volume=vol", "on.namespace=team"]
    return list(plan(load(None, [*settings, "on.job=vcjob", *overrides]).spec, NO_CLUSTER, tmp_path / "run-a").objects)


def test_its_pods_are_a_gang_of_the_least_that_the_run_takes(tmp_path) -> None:
    [job] = manifests(tmp_path, "on.nodes=2..5", "on.priority=high")
    assert key_of(job) == VCJOB.KIND == "Job.batch.volcano.sh"
    spec = job["spec"]
    assert (spec["schedulerName"], spec["queue"], spec["priorityClassName"]) == ("volcano", "default", "high")
    assert (spec["minAvailable"], spec["minSuccess"]) == (2, 1)
    [task] = spec["tasks"]
    assert (task["replicas"], task["minAvailable"]) == (5, 2)
    [job] = manifests(tmp_path, "on.nodes=3")
    assert (job["spec"]["minAvailable"], job["spec"]["minSuccess"]) == (3, 3)


def test_a_failed_pod_is_recreated_unless_its_exit_code_is_fatal(tmp_path) -> None:
    [job] = manifests(tmp_path, "on.nodes=2")
    [task] = job["spec"]["tasks"]
    by_code = {policy["exitCode"]: policy["action"] for policy in task["policies"] if "exitCode" in policy}
    assert 203 not in by_code
    assert by_code[2] == by_code[3] == "TerminateJob"
    assert task["policies"][-1] == {"event": "PodFailed", "action": "RestartPod"}
    assert job["spec"]["maxRetry"] > 10**9  # nothing takes an eviction off that count: it must never be the end


def test_a_queue_is_created_only_when_requested(tmp_path) -> None:
    [job] = manifests(tmp_path, "on.queue=team-a")
    assert job["spec"]["queue"] == "team-a"
    objects = manifests(tmp_path, "on.queue=team-a", "on.queue_make={weight: 1, capability: {cpu: 8}}")
    assert [key_of(manifest) for manifest in objects] == ["Queue", "Job.batch.volcano.sh"]
    assert objects[0]["metadata"]["name"] == "team-a"
    assert objects[0]["spec"] == {"weight": 1, "capability": {"cpu": 8}}
    dry_run = VCJOB.dry_run_objects(objects)
    assert dry_run[-1]["spec"]["queue"] == "default"  # a queue that does not exist yet is refused
    assert objects[-1]["spec"]["queue"] == "team-a"


@pytest.mark.parametrize(
    ("phase", "retries", "state"),
    [
        ("", 0, "waiting"),
        ("Pending", 0, "waiting"),
        ("Pending", 1, "restarting"),
        ("Running", 1, "running"),
        ("Restarting", 1, "restarting"),
        ("Completed", 0, "done"),
        ("Terminating", 0, "failed"),
        ("Terminated", 0, "failed"),
        ("Failed", 0, "failed"),
        ("Aborting", 0, "waiting"),
        ("Aborted", 1, "waiting"),
    ],
)
def test_its_state(phase: str, retries: int, state: str) -> None:
    job = {"metadata": {}, "status": {"state": {"phase": phase}, "retryCount": retries}}
    assert VCJOB.state(job).state == state
    assert VCJOB.state(job | {"metadata": {"deletionTimestamp": "x"}}).state == "stopping"


def test_a_job_that_was_aborted_is_suspended_and_can_be_resumed() -> None:
    job = {"metadata": {}, "status": {"state": {"phase": "Aborted", "message": "AbortJob"}}}
    assert VCJOB.state(job).reason == "Volcano has suspended it"


def test_a_failure_without_a_message_from_volcano_has_a_reason() -> None:
    assert VCJOB.state({"metadata": {}, "status": {"state": {"phase": "Terminating"}}}).reason == (
        "Volcano reports it as terminating"
    )


@pytest.mark.parametrize(("name", "fits"), [("a-side", False), ("side", True)])
def test_no_other_container_sorts_before_the_one_whose_exit_code_counts(tmp_path, name: str, fits: bool) -> None:
    patch = f"on.pod={{spec: {{containers: [{{name: {name}, image: b}}]}}}}"
    if fits:
        containers = VCJOB.template(manifests(tmp_path, patch))["spec"]["containers"]
        assert [container["name"] for container in containers] == ["pytorch", name]
        return
    with pytest.raises(UserError, match=f"on.pod has a container {name}, and Volcano takes the exit code"):
        manifests(tmp_path, patch)


def test_torchx_creates_a_task_for_every_node_and_the_template_is_that_of_the_first() -> None:
    tasks = [{"name": f"node-{n}", "template": {"spec": {"nodeName": f"n{n}"}}} for n in range(2)]
    assert VCJOB.template([{"spec": {"tasks": tasks}}]) == tasks[0]["template"]


def test_a_pod_knows_its_node() -> None:
    assert VCJOB.node({"metadata": {"annotations": {"volcano.sh/task-index": "3"}}}) == 3
    assert VCJOB.node({"metadata": {}}) is None
