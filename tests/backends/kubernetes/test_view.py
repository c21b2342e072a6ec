"""The states of runs in a cluster: of ended runs the last step, or that it was not read yet."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.backends import backend_of
from stoker.backends.kubernetes import backend
from stoker.backends.kubernetes.place import ClusterPlace, place_of
from stoker.cli.main import main
from stoker.rundir import RunDir, consent
from stoker.spec.load import load
from tests.backends.kubernetes.small_cluster import ClusterObjects, served

NAME = "demo-abcd"
VIEW: dict[str, Any] = {
    "name": NAME, "folder": "x", "state": "running", "reason": "", "remedy": "", "step": 3, "steps": 10, "loss": 2.0,
    "tokens": 5, "tokens_per_second": 9.0, "seconds_left": 4.0, "workers": 1, "updated": 1.0, "val_loss": None,
    "checkpoint": None, "restarts": 0, "nodes": [],
}  # fmt: skip
Rows = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterObjects]:
    """A cluster whose job has ended, and where no pod may be created."""
    monkeypatch.chdir(tmp_path)
    meta = {"name": NAME, "namespace": "default", "creationTimestamp": "2026-11-15T12:00:00Z"}
    done = {"conditions": [{"type": "Complete", "status": "True"}]}
    objects = ClusterObjects(by_plural={"jobs": [{"metadata": meta, "spec": {"completions": 1}, "status": done}]})
    with served(objects, tmp_path) as file:
        monkeypatch.setenv("KUBECONFIG", str(file))
        yield objects


@pytest.fixture
def run(cluster: ClusterObjects, tmp_path: Path) -> RunDir:  # noqa: ARG001
    run = RunDir(tmp_path / "runs" / NAME)
    run.create(load(None, ["script=x.py", "on.kind=kubernetes", "on.image=x", "on.volume=v"]).spec, None)
    place = {"context": "lab", "namespace": "default", "job": "job", "run": NAME, "volume": "v", "image": "x"}
    ref = ClusterPlace(kind="kubernetes", **place)  # type: ignore[arg-type]
    ref.write(run)
    consent.record_image(run, ref.image)
    return run


@pytest.fixture
def rows(capsys: pytest.CaptureFixture[str]) -> Rows:
    def ask() -> list[dict[str, Any]]:
        assert main(["ps", "--json"]) == 0
        rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        return rows

    return ask


@pytest.mark.parametrize("asked", [0.0, 4e9], ids=["long ago", "a moment ago"])
def test_a_step_that_was_cached_while_the_run_was_active_is_not_shown_as_its_last(
    run: RunDir, rows: Rows, capsys: pytest.CaptureFixture[str], asked: float
) -> None:
    run.write_seen({"asked": asked, "view": VIEW})
    [row] = rows()
    assert (row["state"], row["step"]) == ("done", 3)
    assert row["unread"]
    assert main(["ps"]) == 0
    text = capsys.readouterr().out
    assert "≥3 of 10" in text
    assert f"stoker status {NAME}" in text


def test_records_that_could_not_be_read_are_not_read_again_at_once(
    cluster: ClusterObjects, run: RunDir, rows: Rows
) -> None:
    run.write_seen({"asked": 0.0, "view": VIEW})
    rows()
    before = len(cluster.requested)
    assert rows()[0]["unread"]
    assert not any("pods" in path for path in cluster.requested[before:])


@pytest.mark.parametrize(
    "seen", [{"view": VIEW | {"state": "done", "step": 10}}, {"view": VIEW | {"step": 10}, "ended": True}]
)
def test_records_that_were_read_after_the_run_ended_are_final(run: RunDir, rows: Rows, seen: dict[str, Any]) -> None:
    run.write_seen({"asked": 0.0} | seen)
    [row] = rows()
    assert (row["state"], row["step"], row["unread"]) == ("done", 10, "")


@pytest.mark.parametrize("damage", [{"job": "job"}, {"job": "teleport", "namespace": "default"}])
def test_a_damaged_place_does_not_hide_the_other_runs(
    cluster: ClusterObjects, run: RunDir, rows: Rows, tmp_path: Path, damage: dict[str, str]
) -> None:
    del cluster
    run.write_seen({"asked": 0.0, "view": VIEW | {"state": "done"}})
    damaged = RunDir(tmp_path / "runs" / "damaged")
    damaged.create(run.any_spec(), None)
    place = {"kind": "kubernetes", "context": "lab", "run": "damaged", "volume": "v", "image": "x"}
    damaged.write_place(place | damage)
    states = {row["name"]: row["state"] for row in rows()}
    assert states == {NAME: "done", "damaged": "unknown"}


def test_a_cluster_that_stops_answering_is_a_reason_in_the_row(
    cluster: ClusterObjects, run: RunDir, rows: Rows
) -> None:
    run.write_seen({"asked": 0.0, "view": VIEW})
    cluster.by_plural["jobs"][0]["status"] = {}
    cluster.broken["pods"] = 500
    [row] = rows()
    assert (row["name"], row["state"], row["step"]) == (NAME, "unknown", 3)
    assert "refused by the test" in row["reason"]


def test_runs_in_a_folder_that_cannot_be_written_are_shown(
    run: RunDir, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_seen(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    run.write_seen({"asked": 0.0, "view": VIEW})
    monkeypatch.setattr(RunDir, "write_seen", write_seen)
    [row] = rows()
    assert (row["state"], row["step"]) == ("done", 3)
    assert row["unread"]


def test_waiting_for_a_run_that_is_being_stopped_returns_when_its_job_is_gone(
    cluster: ClusterObjects, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.write_seen({"asked": 0.0, "view": VIEW | {"state": "paused"}})
    [job] = cluster.by_plural["jobs"]
    job["status"] = {}
    job["metadata"]["deletionTimestamp"] = "2026-11-15T12:00:00Z"
    monkeypatch.setattr(backend.time, "sleep", lambda _: cluster.by_plural["jobs"].clear())
    assert backend_of(run).wait(run).state == "paused"


VERBS = [["status"], ["logs"], ["why"], ["events"], ["cp", f"{NAME}:x", "."], ["shell", "--", "ls"], ["scale", "2"]]


@pytest.mark.parametrize("argv", VERBS, ids=lambda argv: str(argv[0]))
def test_no_pod_is_created_from_the_image_of_an_untrusted_run(
    cluster: ClusterObjects, run: RunDir, argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    place = place_of(run)
    replace(place, image="evil/image").write(run)
    verb, *others = argv
    arguments = others if verb == "cp" else [NAME, *others]
    main([verb, *arguments])
    output = "".join(capsys.readouterr())
    assert not any("persistentvolumeclaims" in path for path in cluster.requested), "the first request for a pod"
    assert "place.image=evil/image" in output
    assert "--trust" in output
    if verb != "scale":  # its job has ended
        main([verb, "--trust", *arguments])
        assert any("persistentvolumeclaims" in path for path in cluster.requested)
