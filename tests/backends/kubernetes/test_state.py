"""Pods as rows: the newest of each node, and why it does not run."""

from functools import partial
from typing import Any

import pytest

from stoker.backends.kubernetes.place import ClusterPlace
from stoker.backends.kubernetes.state import PodRow, event_time, is_about, pod_rows, seconds

INDEX = "index"


def pod(name: str, index: int | None, *, born: str = "2026-01-01T00:00:00Z", **status: Any) -> dict[str, Any]:
    labels = {} if index is None else {INDEX: str(index)}
    return {
        "metadata": {"name": name, "labels": labels, "creationTimestamp": born},
        "spec": {"nodeName": "machine-1", "containers": [{"name": "pytorch", "image": "img:1"}]},
        "status": {"phase": "Running"} | status,
    }


def container(state: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    return [{"name": "pytorch", "state": state, "restartCount": 0, "imageID": ""} | more]


def rows(*pods: dict[str, Any], node_records: list[dict[str, Any]] | None = None) -> list[PodRow]:
    def node(pod: dict[str, Any]) -> int | None:
        index = pod["metadata"]["labels"].get(INDEX)
        return None if index is None else int(index)

    return pod_rows(iter(pods), node, node_records or [])


def test_the_newest_pod_of_a_node_stands_for_it_and_the_others_are_restarts() -> None:
    old = pod("a-0-x", 0, phase="Failed", containerStatuses=container({"terminated": {"exitCode": 203}}))
    new = pod("a-0-y", 0, born="2026-01-01T00:01:00Z")
    for order in ((old, new), (new, old)):
        (row,) = rows(*order)
        assert (row.pod, row.state, row.restarts) == ("a-0-y", "Running", 1)


def test_ranks_come_from_the_runs_own_records() -> None:
    node_records = [{"pod": "b", "first": 0, "workers": 4}, {"pod": "a", "first": 4, "workers": 1}]
    assert [(row.pod, row.ranks) for row in rows(pod("a", 0), pod("b", 1), pod("c", 2), node_records=node_records)] == [
        ("a", "4"),
        ("b", "0-3"),
        ("c", ""),
    ]


def test_the_reason_of_a_waiting_init_container_is_shown() -> None:
    waits = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "alpine:3.10"'}
    before = container({"waiting": waits}, name="init-pytorch")
    behind = container({"waiting": {"reason": "PodInitializing"}})
    (row,) = rows(pod("a", 0, phase="Pending", initContainerStatuses=before, containerStatuses=behind))
    assert row.state == "Init:ImagePullBackOff"
    assert row.reason == 'init-pytorch: Back-off pulling image "alpine:3.10"'


def test_the_reason_why_a_pod_does_not_run_is_shown() -> None:
    pull = container({"waiting": {"reason": "ImagePullBackOff", "message": "no\n such image"}})
    nowhere = [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}]
    dead = container({"terminated": {"exitCode": 137, "reason": "OOMKilled"}})
    gone = pod("d", 3)
    gone["metadata"]["deletionTimestamp"] = "now"
    shown = rows(
        pod("a", 0, phase="Pending", containerStatuses=pull),
        pod("b", 1, phase="Pending", conditions=nowhere),
        pod("c", 2, phase="Failed", containerStatuses=dead),
        gone,
    )
    assert [(row.state, row.reason) for row in shown] == [
        ("ImagePullBackOff", "no such image"),
        ("Pending", "0/2 nodes are available"),
        ("Failed", "exit code 137 (OOMKilled)"),
        ("Stopping", ""),
    ]


def test_an_image_is_shown_by_its_digest_once_it_is_known() -> None:
    pulled = container({"running": {}}, imageID="docker-pullable://img@sha256:12")
    assert [row.image for row in rows(pod("a", 0), pod("b", 1, containerStatuses=pulled))] == ["img:1", "img@sha256:12"]


def test_pods_that_are_no_node_come_last() -> None:
    assert [row.pod for row in rows(pod("reader", None), pod("b", 1), pod("a", 0))] == ["a", "b", "reader"]


def test_the_time_of_an_event_is_that_of_its_last_occurrence() -> None:
    event = {"metadata": {"creationTimestamp": "1970-01-01T00:01:00Z"}}
    assert event_time(event) == 60
    assert event_time(event | {"eventTime": "1970-01-01T00:02:00.000000Z", "lastTimestamp": None}) == 120
    series = {"lastObservedTime": "1970-01-01T00:03:00.000000Z", "count": 7}
    assert event_time(event | {"eventTime": "1970-01-01T00:02:00.000000Z", "series": series}) == 180


def test_times_are_read_as_kubernetes_writes_them() -> None:
    assert seconds("1970-01-01T00:01:00Z") == seconds("1970-01-01T00:01:00.000000Z") == 60
    assert seconds(None) is None


@pytest.mark.parametrize(
    ("job", "kind", "name", "run"),
    [
        ("job", "Job", "gpt", "gpt"),
        ("job", "Job", "gpt-2", "gpt-2"),
        ("job", "Pod", "gpt-2-x7k2p", "gpt"),
        ("job", "Pod", "gpt-2-0-x7k2p", "gpt-2"),
        ("jobset", "Job", "gpt-node-0", "gpt"),
        ("jobset", "Pod", "gpt-2-node-0-1-x7k2p", "gpt-2"),
        ("trainjob", "JobSet", "gpt-2", "gpt-2"),
        ("pytorchjob", "Pod", "gpt-worker-3", "gpt"),
        ("pytorchjob", "Service", "gpt-2-master-0", "gpt-2"),
        ("vcjob", "Pod", "gpt-2-node-1", "gpt-2"),
        ("vcjob", "PodGroup", "gpt-7d0e41a5-53f4-4a0b-8a3c-0f6f2f2f8c11", "gpt"),
        ("job", "Pod", "gpt-2-reader", "gpt-2"),
    ],
)
def test_an_event_is_about_one_of_two_runs_whose_names_begin_alike(job: str, kind: str, name: str, run: str) -> None:
    event = {"involvedObject": {"kind": kind, "name": name}}
    assert [place.run for place in map(partial(place_named, job), ("gpt", "gpt-2")) if is_about(event, place)] == [run]


def place_named(job: str, run: str) -> ClusterPlace:
    return ClusterPlace(kind="kubernetes", context=None, namespace="team", job=job, run=run, volume="v", image="i")
