"""What `ps` shows of ended runs in a cluster: their last step, or that it was not read yet."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.backends.kubernetes.place import ClusterPlace, place_of
from stoker.cli.main import main
from stoker.rundir import RunDir, consent
from stoker.spec.load import load
from tests.backends.kubernetes.small_cluster import Holdings, served

NAME = "demo-abcd"
VIEW: dict[str, Any] = {
    "name": NAME, "folder": "x", "state": "running", "reason": "", "remedy": "", "step": 3, "steps": 10, "loss": 2.0,
    "tokens": 5, "tokens_per_second": 9.0, "seconds_left": 4.0, "workers": 1, "updated": 1.0, "val_loss": None,
    "checkpoint": None, "restarts": 0, "nodes": [],
}  # fmt: skip
Rows = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Holdings]:
    """A cluster whose job has ended, and where no pod may be created."""
    monkeypatch.chdir(tmp_path)
    meta = {"name": NAME, "namespace": "default", "creationTimestamp": "2026-11-15T12:00:00Z"}
    done = {"conditions": [{"type": "Complete", "status": "True"}]}
    holdings = Holdings(things={"jobs": [{"metadata": meta, "spec": {"completions": 1}, "status": done}]})
    with served(holdings, tmp_path) as file:
        monkeypatch.setenv("KUBECONFIG", str(file))
        yield holdings


@pytest.fixture
def run(there: Holdings, tmp_path: Path) -> RunDir:  # noqa: ARG001
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
        found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        return found

    return ask


@pytest.mark.parametrize("asked", [0.0, 4e9], ids=["long ago", "a moment ago"])
def test_a_step_that_was_seen_while_it_ran_is_not_shown_as_its_last(
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


def test_what_could_not_be_read_is_not_tried_again_at_once(there: Holdings, run: RunDir, rows: Rows) -> None:
    run.write_seen({"asked": 0.0, "view": VIEW})
    rows()
    before = len(there.asked)
    assert rows()[0]["unread"]
    assert not any("pods" in path for path in there.asked[before:])


@pytest.mark.parametrize(
    "seen", [{"view": VIEW | {"state": "done", "step": 10}}, {"view": VIEW | {"step": 10}, "ended": True}]
)
def test_what_was_read_after_it_ended_counts(run: RunDir, rows: Rows, seen: dict[str, Any]) -> None:
    run.write_seen({"asked": 0.0} | seen)
    [row] = rows()
    assert (row["state"], row["step"], row["unread"]) == ("done", 10, "")


VERBS = [["status"], ["logs"], ["why"], ["events"], ["cp", f"{NAME}:x", "."], ["shell", "--", "ls"], ["scale", "2"]]


@pytest.mark.parametrize("words", VERBS, ids=lambda words: str(words[0]))
def test_no_pod_is_created_from_the_image_of_an_untrusted_run(
    there: Holdings, run: RunDir, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    place = place_of(run)
    assert place is not None
    replace(place, image="evil/image").write(run)
    verb, *others = words
    argv = [verb, *(others if verb == "cp" else [NAME, *others])]
    main(argv)
    said = capsys.readouterr()
    assert not any("persistentvolumeclaims" in path for path in there.asked), "that is how it begins"
    assert "place.image=evil/image" in said.out + said.err
    assert "--trust" in said.out + said.err
    if verb != "scale":  # its job is over
        main([verb, "--trust", *argv[1:]])
        assert any("persistentvolumeclaims" in path for path in there.asked)
