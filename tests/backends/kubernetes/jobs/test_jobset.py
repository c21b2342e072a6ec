"""The JobSet of a run."""

import pytest

from stoker.backends.kubernetes.jobs import job_kind
from stoker.backends.kubernetes.plan import NO_CLUSTER, plan
from stoker.spec.load import load

JOBSET = job_kind("jobset")


def manifests(planned_run, *overrides: str) -> list[dict]:
    settings = ["data=x", "until.steps=1", "on.kind=kubernetes", "on.image=img:1", "on.volume=vol", "on.namespace=team"]
    return list(plan(load(None, [*settings, *overrides]).spec, NO_CLUSTER, planned_run).objects)


def test_its_job_is_the_plain_one_so_that_a_lost_pod_restarts_nothing_else(tmp_path) -> None:
    [jobset] = manifests(tmp_path / "run-a", "on.job=jobset", "on.nodes=2..3")
    *_, plain_job = manifests(tmp_path / "run-a", "on.job=job", "on.nodes=2..3")
    [replicated] = jobset["spec"]["replicatedJobs"]
    assert "failurePolicy" not in jobset["spec"]  # with one, every failed Job would restart all of it
    assert replicated["replicas"] == 1
    inner, outer = replicated["template"]["spec"], dict(plain_job["spec"])
    outer["template"]["spec"].pop("subdomain")  # the set gives its pods names itself
    outer.pop("ttlSecondsAfterFinished")
    assert inner == outer


def test_its_names_leave_room_for_those_of_its_pods(tmp_path) -> None:
    [jobset] = manifests(tmp_path / ("x" * 45), "on.job=jobset", "on.nodes=1000")
    assert len(f"{jobset['metadata']['name']}-node-0-999-abcde") <= 63


def test_the_job_that_results_from_it_is_checked_too(tmp_path) -> None:
    objects = manifests(tmp_path / "run-a", "on.job=jobset", "on.nodes=2")
    dry_run = JOBSET.dry_run_objects(objects)
    assert [manifest["kind"] for manifest in dry_run] == ["JobSet", "Job"]
    assert dry_run[-1]["metadata"]["name"] == "run-a-node-0"


@pytest.mark.parametrize(
    ("conditions", "ready", "state"),
    [
        ([], 0, "waiting"),
        ([], 1, "running"),
        (["Completed"], 0, "done"),
        (["Failed"], 0, "failed"),
        (["Suspended"], 0, "waiting"),
    ],
)
def test_its_state(conditions: list[str], ready: int, state: str) -> None:
    true = [{"type": kind, "status": "True", "message": "m"} for kind in conditions]
    counted = [{"name": "node", "ready": ready, "active": 1}]
    jobset = {"metadata": {}, "status": {"conditions": true, "replicatedJobsStatus": counted}}
    assert JOBSET.state(jobset).state == state
    assert JOBSET.state(jobset | {"metadata": {"deletionTimestamp": "x"}}).state == "stopping"
    assert JOBSET.state({"metadata": {}}).state == "waiting"
