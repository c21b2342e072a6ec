"""Logs from the API server, of more pods than a test cluster has."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from stoker.backends.kubernetes.logs import pod_logs
from stoker.backends.kubernetes.place import ClusterPlace
from stoker.kube import connect
from stoker.rundir.logs import LogLine
from stoker.spec.errors import UserError
from tests.backends.kubernetes.small_cluster import ClusterObjects, served

PLACE = ClusterPlace(kind="kubernetes", context="many", namespace="lab", job="job", run="demo", volume="v", image="i")
Serve = Callable[[int, int], None]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    started: list[subprocess.Popen[str]] = []

    def start(pods: int, lines: int) -> None:
        argv = [sys.executable, str(Path(__file__).with_name("pod_server.py")), str(pods), str(lines)]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        port = int(process.stdout.readline())
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "many",
            "clusters": [{"name": "many", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "contexts": [{"name": "many", "context": {"cluster": "many", "user": "me", "namespace": "lab"}}],
            "users": [{"name": "me", "user": {"token": "t"}}],
        }
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))

    yield start
    for process in started:
        process.kill()
        process.communicate()


def ranks_and_lines(lines: Iterator[LogLine]) -> list[tuple[int, str]]:
    return [(line.rank, line.line) for line in lines]


def test_one_rank_is_read_from_its_node_only(serve: Serve) -> None:
    serve(10, 4)
    lines_read = ranks_and_lines(pod_logs(connect(), PLACE, workers=2, rank=9))
    assert lines_read == [(9, "step 1 of node 4"), (9, "step 3 of node 4")]


def test_lines_of_the_supervisor_get_the_first_rank(serve: Serve) -> None:
    serve(10, 2)
    line, *_ = pod_logs(connect(), PLACE, workers=2, rank=8)
    assert (line.rank, line.line) == (8, "node 4 begins")
    assert line.time == pytest.approx(1794744000.123456)


def test_all_ranks_come_in_the_order_of_the_nodes_without_pods_that_wait(serve: Serve) -> None:
    serve(20, 3)
    lines_read = ranks_and_lines(pod_logs(connect(), PLACE, workers=2, rank=None, tail=1))
    assert lines_read == [
        line
        for node in range(20)
        if node != 3
        for line in [(2 * node, f"node {node} begins"), (2 * node, f"step 2 of node {node}")]
    ]


def test_several_pods_are_followed_at_once(serve: Serve) -> None:
    serve(5, 20)
    lines_read = ranks_and_lines(pod_logs(connect(), PLACE, workers=2, rank=None, follow=True))
    assert len(lines_read) == 4 * 21
    assert len({rank // 2 for rank, _ in lines_read[:21]}) > 1, "they take turns"


def test_too_many_pods_are_not_followed(serve: Serve) -> None:
    serve(60, 1)
    with pytest.raises(UserError, match="60 pods are too many to follow"):
        list(pod_logs(connect(), PLACE, workers=2, rank=None, follow=True))


def test_a_rank_that_no_pod_has(serve: Serve) -> None:
    serve(2, 1)
    with pytest.raises(UserError, match="has no pod of rank 7"):
        list(pod_logs(connect(), PLACE, workers=2, rank=7))


def test_a_line_without_a_time_or_with_a_number_that_is_no_rank_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = f"[{'9' * 5000}] is no rank"
    pod = {"metadata": {"name": "demo-0"}}
    log = f"no time here\n2026-11-15T12:00:00Z {number}\n"
    with served(ClusterObjects(by_plural={"pods": [pod]}, logs={"demo-0": log}), tmp_path) as file:
        monkeypatch.setenv("KUBECONFIG", str(file))
        lines = list(pod_logs(connect(), PLACE, workers=1, rank=None))
    assert [(line.time, line.line) for line in lines] == [(None, "no time here"), (1794744000.0, number)]


def test_a_thousand_pods_are_read_with_little_memory(serve: Serve) -> None:
    serve(1000, 100)
    code = """
import re
from stoker.kube import connect
from stoker.backends.kubernetes.logs import pod_logs
from stoker.backends.kubernetes.place import ClusterPlace
ref = ClusterPlace(kind="kubernetes", context="many", namespace="lab", job="job", run="demo", volume="v", image="i")
lines = sum(1 for _ in pod_logs(connect(), ref, workers=2, rank=None))
most = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]  # ru_maxrss begins with the parent's
print(lines, most)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines, kib = map(int, done.stdout.split())
    assert lines == 999 * 101
    print(f"{kib / 1024:.0f} MiB at most")
    assert kib < 200 * 1024
