"""`stoker top` of more pods than a test cluster has, and of pods that do not answer."""

import time
from pathlib import Path

import pytest

from stoker.launch.probe.pods import MOST
from stoker.observe import cluster_top
from stoker.observe.cluster_top import ClusterTop
from tests.closed_pods import launched, serving
from tests.waiting import until


def test_very_many_pods_that_hang_are_asked_together_and_given_up_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setattr(cluster_top, "PATIENCE", 5.0)
    run = launched(tmp_path, "job")
    with serving(tmp_path / "kubeconfig") as server:
        server.pods, server.hangs = MOST + 44, True
        top = ClusterTop(run, run.place_ref())
        began = time.monotonic()
        seen = top.look()
        assert time.monotonic() - began < 300  # one after the other they take twenty minutes
        until(lambda: len(server.asked) >= MOST)
        assert len(server.asked) == MOST
        server.pods += 90
        assert top.look().pods == MOST + 134
        assert len(server.asked) == MOST, "a command was left behind in a pod, and another one was asked"
    assert (seen.pods, seen.asked, len(seen.unread)) == (MOST + 44, MOST, MOST)
    assert set(seen.unread.values()) == {"no answer within 5 seconds"}
    assert (seen.state, seen.used) == ("running", [])


def test_a_pod_that_has_ended_meanwhile_is_not_said_to_keep_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    run = launched(tmp_path, "job")
    with serving(tmp_path / "kubeconfig") as server:
        assert set(ClusterTop(run, run.place_ref()).look().unread) == {"demo-0", "demo-1"}
        server.ends = True
        assert ClusterTop(run, run.place_ref()).look().unread == {}


def test_of_a_run_that_is_over_no_pod_owes_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node may tell later that its container has ended."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    run = launched(tmp_path, "job")
    with serving(tmp_path / "kubeconfig") as server:
        server.done = True
        seen = ClusterTop(run, run.place_ref()).look()
    assert (seen.state, seen.pods, seen.unread) == ("done", 2, {})
