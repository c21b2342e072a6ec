"""`stoker why`: one line, or JSON; the same in `status` of a run that fails."""

import json
from pathlib import Path

import pytest

from stoker.cli.main import main
from stoker.rundir import Exit, RunDir, events
from stoker.spec.load import load


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """One whose second worker failed first."""
    monkeypatch.chdir(tmp_path)
    run = RunDir(tmp_path / "runs" / "tale")
    run.create(load(None, ["script=x.py"]).spec, None)
    run.log(1).write_text("KeyError: 'a\x1b[31m'\n")
    run.add_event(events.Failed(code=1, signal=None, line="KeyError: 'a'", again=False), rank=1)
    run.write_exit(Exit(state="failed", code=3, step=4, reason="worker 1 ended with code 1", remedy="Read", rank=1))
    return run


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["why", *words]) == code
    out = capsys.readouterr()
    return out.err if code else out.out


def test_it_is_one_line_with_a_cause_and_what_to_type(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, run.name)
    assert text.count("\n") == 1
    assert text.startswith("failed: worker 1 was the first to fail: KeyError: 'a")
    assert "stoker launch tale" in text
    assert "\x1b" not in text


def test_all_that_fits_is_told_when_asked(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, run.name, "--all").count("\n") > 1


def test_json_has_the_cause_and_the_others(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(said(capsys, run.name, "--json"))
    assert (found["run"], found["state"], found["id"], found["count"]) == ("tale", "failed", "worker-failed", 1)
    assert found["others"][0]["id"] == "run-failed"
    assert found["unread"] == ""


def test_what_is_known_of_it_can_be_had_without_a_verdict(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(said(capsys, run.name, "--facts"))
    assert facts["record"]["rank"] == 1
    assert facts["run"]["state"] == "failed"


@pytest.mark.parametrize(("state", "word"), [("done", "it is done"), ("paused", "stoker launch tale")])
def test_a_run_that_is_well_yields_none(run: RunDir, capsys: pytest.CaptureFixture[str], state: str, word: str) -> None:
    (run.path / "events.jsonl").unlink()
    run.write_exit(Exit(state=state, code=0, step=9, reason="as asked"))  # type: ignore[arg-type]
    text = said(capsys, run.name)
    assert text.startswith("nothing is wrong: ")
    assert word in text
    assert json.loads(said(capsys, run.name, "--json"))["id"] is None


def test_status_of_a_run_that_failed_says_why(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", run.name]) == 0
    shown = capsys.readouterr().out
    assert "why" in shown
    assert "worker 1 was the first to fail" in shown
    assert main(["status", run.name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["why"]["id"] == "worker-failed"


def test_a_run_that_is_not_there_is_refused_in_a_line(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Did you mean tale?" in said(capsys, "tail", code=2)
    assert run.exists()


def test_a_run_that_is_not_found_by_its_name_is_called_by_its_folder(
    run: RunDir, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (run.path / "events.jsonl").unlink()
    run.write_exit(Exit(state="paused", code=0, step=9, reason="as asked"))
    monkeypatch.chdir(run.path)
    assert f"stoker launch {run.path}\n" in said(capsys, run.name, "--runs", str(run.path.parent))
