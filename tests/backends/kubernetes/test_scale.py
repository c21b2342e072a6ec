"""The patch that scales a job, and when it must be recreated."""

from pathlib import Path
from typing import Any

import pytest

from stoker.backends.kubernetes.plan import NO_CLUSTER, plan, planned_place
from stoker.backends.kubernetes.scale import in_order, is_applied, scale_patch
from stoker.spec.errors import UserError
from stoker.spec.load import load
from stoker.spec.on import Nodes


def scaled(job: str, was: str, nodes: str, *overrides: str) -> dict[str, Any] | None:
    settings = ["on.kind=kubernetes", f"on.job={job}", "on.image=img:1", "on.volume=vol", "on.namespace=team"]
    spec = load(None, ["data=x", "until.steps=1", *settings, f"on.nodes={was}", *overrides]).spec
    submission = plan(spec, NO_CLUSTER, Path("runs/demo-abcd"))
    return scale_patch(planned_place(submission), submission.objects[-1], spec, Nodes(nodes))


@pytest.mark.parametrize(
    ("was", "nodes", "failing"), [("1", "2", 0), ("2", "1", 0), ("1..8", "2..4", 2), ("1..8", "3", 0)]
)
def test_a_plain_job_has_as_many_pods_and_completions(was: str, nodes: str, failing: int) -> None:
    most = Nodes(nodes).most
    counts = {"completions": most, "parallelism": most, "maxFailedIndexes": failing}
    assert scaled("job", was, nodes) == {"spec": counts}


def test_a_plain_job_that_waits_for_all_its_pods_is_recreated_for_a_range() -> None:
    assert scaled("job", "2", "1..4") is None


def test_an_elastic_pytorchjob_gets_bounds_and_replicas() -> None:
    spec = {"elasticPolicy": {"minReplicas": 2, "maxReplicas": 3}, "pytorchReplicaSpecs": {"Worker": {"replicas": 3}}}
    assert scaled("pytorchjob", "1..8", "2..3") == {"spec": spec}


@pytest.mark.parametrize("nodes", ["1..8", "2..4"])
def test_with_an_autoscaler_only_the_bounds_change(nodes: str) -> None:
    least, most = Nodes(nodes).least, Nodes(nodes).most
    patch = scaled("pytorchjob", "1..8", nodes, "on.autoscale={cpu: 80}", "on.cpu=1")
    assert patch == {"spec": {"elasticPolicy": {"minReplicas": least, "maxReplicas": most}}}


@pytest.mark.parametrize(("was", "nodes", "workers"), [("2", "4", 3), ("4", "2", 1)])
def test_a_master_keeps_its_workers_number(was: str, nodes: str, workers: int) -> None:
    assert scaled("pytorchjob", was, nodes) == {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": workers}}}}


@pytest.mark.parametrize(("was", "nodes"), [("1", "2"), ("2", "1"), ("2", "1..3")])
def test_a_master_does_not_win_or_lose_its_first_worker(was: str, nodes: str) -> None:
    assert scaled("pytorchjob", was, nodes) is None


def test_a_jobset_has_other_counts_in_the_job_that_it_has() -> None:
    [job] = (scaled("jobset", "1", "3") or {})["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    assert (job["name"], spec["completions"], spec["parallelism"], spec["maxFailedIndexes"]) == ("node", 3, 3, 0)
    assert spec["template"]["spec"]["containers"]
    assert scaled("jobset", "1..8", "2..9") is not None


def test_a_jobset_with_another_number_of_allowed_failures_is_recreated() -> None:
    assert scaled("jobset", "1..8", "2..4") is None
    assert scaled("jobset", "2", "1..4") is None


@pytest.mark.parametrize("job", ["trainjob", "vcjob"])
def test_jobs_of_a_fixed_size_are_recreated(job: str) -> None:
    assert scaled(job, "1", "2") is None


def test_pods_that_need_other_devices_on_several_nodes_are_recreated() -> None:
    assert scaled("job", "1", "2", "on.instance=p4d.24xlarge") is None  # EFA
    assert scaled("job", "2", "3", "on.instance=p4d.24xlarge") is not None


def test_is_applied_compares_only_the_fields_of_the_patch() -> None:
    job = {"spec": {"completions": 2, "parallelism": 2, "suspend": False}, "status": {}}
    assert is_applied(job, {"spec": {"completions": 2, "parallelism": 2}})
    assert not is_applied(job, {"spec": {"completions": 3}})
    assert not is_applied(job, {"spec": {"policy": {"least": 1}}})


@pytest.mark.parametrize(
    ("was", "nodes", "order"),
    [
        ("2", "4", ["read", "apply", "set 4"]),
        ("4", "2", ["read", "set 2", "apply"]),
        ("1..4", "2..4", ["read", "set 2..4", "apply"]),
        ("1..4", "2..8", ["read", "apply", "set 2..8"]),
    ],
)
def test_supervisors_never_wait_for_a_pod_that_is_not_created(was: str, nodes: str, order: list[str]) -> None:
    done: list[str] = []

    def set_wanted(*number: Nodes) -> str:
        done.append(f"set {number[0]}" if number else "read")
        return was

    assert in_order(Nodes(nodes), set_wanted=set_wanted, apply=lambda: done.append("apply")) == was
    assert done == order


def test_no_pods_are_created_for_a_run_whose_supervisors_cannot_be_reached() -> None:
    def set_wanted(*_: Nodes) -> str:
        raise UserError("no supervisor answers", remedy="")

    with pytest.raises(UserError, match="no supervisor answers"):
        in_order(Nodes("4"), set_wanted=set_wanted, apply=lambda: pytest.fail("pods were created"))
