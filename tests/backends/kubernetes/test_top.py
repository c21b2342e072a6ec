"""`stoker top` of more pods than a test cluster has, and of pods that do not answer."""

import time
from pathlib import Path

import pytest

from stoker.backends import backend_of
from stoker.backends.kubernetes import top as cluster_top
from stoker.backends.kubernetes.state import MAX_ASKED
from stoker.backends.kubernetes.top import ClusterTop
from tests.closed_pods import launched, serving
from tests.waiting import until


@pytest.mark.slow
def test_many_pods_that_hang_time_out_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setattr(cluster_top, "FIRST_REPORT_TIMEOUT_S", 5.0)
    run = launched(tmp_path, "job")
    with serving(tmp_path / "kubeconfig") as server:
        server.pods, server.hangs = MAX_ASKED + 44, True
        top = ClusterTop(run, backend_of(run).files(run))
        began = time.monotonic()
        usage = top.read()
        assert time.monotonic() - began < 300  # one after the other they take twenty minutes
        until(lambda: len(server.asked) >= MAX_ASKED)
        assert len(server.asked) == MAX_ASKED
        server.pods += 90
        assert top.read().pods == MAX_ASKED + 134
        assert len(server.asked) == MAX_ASKED, "a command was left behind in a pod, and another one was asked"
    assert (usage.pods, usage.asked, len(usage.unread)) == (MAX_ASKED + 44, MAX_ASKED, MAX_ASKED)
    assert set(usage.unread.values()) == {"no answer within 5 seconds"}
    assert (usage.state, usage.workers) == ("running", [])


def test_a_pod_that_has_ended_since_is_not_reported_as_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    run = launched(tmp_path, "job")
    with serving(tmp_path / "kubeconfig") as server:
        assert set(ClusterTop(run, backend_of(run).files(run)).read().unread) == {"demo-0", "demo-1"}
        server.ends = True
        assert ClusterTop(run, backend_of(run).files(run)).read().unread == {}


def test_pods_of_an_ended_run_are_not_reported_as_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node may tell later that its container has ended."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    run = launched(tmp_path, "job")
    with serving(tmp_path / "kubeconfig") as server:
        server.done = True
        usage = ClusterTop(run, backend_of(run).files(run)).read()
    assert (usage.state, usage.pods, usage.unread) == ("done", 2, {})
