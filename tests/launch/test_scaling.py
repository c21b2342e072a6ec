"""What a job is changed by when its run is scaled, and when it has to be made anew."""

from pathlib import Path
from typing import Any

import pytest

from stoker.launch.kubernetes import NO_CLUSTER, place_of, plan
from stoker.launch.scaling import holds, in_turn, patched
from stoker.spec.errors import UserError
from stoker.spec.load import load
from stoker.spec.on import Nodes


def scaled(job: str, was: str, nodes: str, *words: str) -> dict[str, Any] | None:
    given = ["on.kind=kubernetes", f"on.job={job}", "on.image=img:1", "on.volume=vol", "on.namespace=team"]
    spec = load(None, ["data=x", "until.steps=1", *given, f"on.nodes={was}", *words]).spec
    submission = plan(spec, NO_CLUSTER, Path("runs/demo-abcd"))
    return patched(place_of(submission), submission.objects[-1], spec, Nodes(nodes))


@pytest.mark.parametrize(
    ("was", "nodes", "failing"), [("1", "2", 0), ("2", "1", 0), ("1..8", "2..4", 2), ("1..8", "3", 0)]
)
def test_a_plain_job_has_as_many_pods_and_completions(was: str, nodes: str, failing: int) -> None:
    most = Nodes(nodes).most
    counts = {"completions": most, "parallelism": most, "maxFailedIndexes": failing}
    assert scaled("job", was, nodes) == {"spec": counts}


def test_a_plain_job_that_waits_for_all_its_pods_is_made_anew_for_a_range() -> None:
    assert scaled("job", "2", "1..4") is None


def test_an_elastic_pytorchjob_gets_bounds_and_replicas() -> None:
    spec = {"elasticPolicy": {"minReplicas": 2, "maxReplicas": 3}, "pytorchReplicaSpecs": {"Worker": {"replicas": 3}}}
    assert scaled("pytorchjob", "1..8", "2..3") == {"spec": spec}


@pytest.mark.parametrize("nodes", ["1..8", "2..4"])
def test_between_its_bounds_an_autoscaler_chooses(nodes: str) -> None:
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


def test_a_jobset_that_may_lose_other_pods_is_made_anew() -> None:
    assert scaled("jobset", "1..8", "2..4") is None
    assert scaled("jobset", "2", "1..4") is None


@pytest.mark.parametrize("job", ["trainjob", "vcjob"])
def test_what_has_one_size_for_its_life_is_made_anew(job: str) -> None:
    assert scaled(job, "1", "2") is None


def test_pods_that_need_other_devices_among_several_are_made_anew() -> None:
    assert scaled("job", "1", "2", "on.instance=p4d.24xlarge") is None  # EFA
    assert scaled("job", "2", "3", "on.instance=p4d.24xlarge") is not None


def test_an_object_holds_what_it_was_given() -> None:
    job = {"spec": {"completions": 2, "parallelism": 2, "suspend": False}, "status": {}}
    assert holds(job, {"spec": {"completions": 2, "parallelism": 2}})
    assert not holds(job, {"spec": {"completions": 3}})
    assert not holds(job, {"spec": {"policy": {"least": 1}}})


@pytest.mark.parametrize(
    ("was", "nodes", "order"),
    [
        ("2", "4", ["ask", "give", "tell 4"]),
        ("4", "2", ["ask", "tell 2", "give"]),
        ("1..4", "2..4", ["ask", "tell 2..4", "give"]),
        ("1..4", "2..8", ["ask", "give", "tell 2..8"]),
    ],
)
def test_nobody_waits_for_a_pod_that_is_not_made(was: str, nodes: str, order: list[str]) -> None:
    done: list[str] = []

    def tell(*number: Nodes) -> str:
        done.append(f"tell {number[0]}" if number else "ask")
        return was

    assert in_turn(Nodes(nodes), tell=tell, give=lambda: done.append("give")) == was
    assert done == order


def test_no_pods_are_made_for_a_run_that_cannot_be_told() -> None:
    def tell(*_: Nodes) -> str:
        raise UserError("nobody hears it", remedy="")

    with pytest.raises(UserError, match="nobody hears it"):
        in_turn(Nodes("4"), tell=tell, give=lambda: pytest.fail("pods were made"))
