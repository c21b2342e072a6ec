"""`stoker why`: one line, or JSON; the same cause in `status` of a failed run."""

import json
from pathlib import Path

import pytest

from stoker.cli.main import main
from stoker.rundir import Exit, RunDir, events
from stoker.spec.load import load


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run whose second worker failed first."""
    monkeypatch.chdir(tmp_path)
    run = RunDir(tmp_path / "runs" / "tale")
    run.create(load(None, ["script=x.py"]).spec, None)
    run.log(1).write_text("KeyError: 'a\x1b[31m'\n")
    run.add_event(events.Failed(code=1, signal=None, line="KeyError: 'a'", again=False), rank=1)
    run.write_exit(Exit(state="failed", code=3, step=4, reason="worker 1 ended with code 1", remedy="Read", rank=1))
    return run


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(["why", *arguments]) == code
    out = capsys.readouterr()
    return out.err if code else out.out


def test_the_output_is_one_line_with_a_cause_and_a_remedy(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    text = output_of(capsys, run.name)
    assert text.count("\n") == 1
    assert text.startswith("failed: worker 1 was the first to fail: KeyError: 'a")
    assert "stoker launch tale" in text
    assert "\x1b" not in text


def test_all_shows_every_cause(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert output_of(capsys, run.name, "--all").count("\n") > 1


def test_json_has_the_cause_and_the_others(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    result = json.loads(output_of(capsys, run.name, "--json"))
    assert (result["run"], result["state"], result["id"], result["count"]) == ("tale", "failed", "worker-failed", 1)
    assert result["others"][0]["id"] == "run-failed"
    assert result["unread"] == ""


def test_facts_are_printed_as_json(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(output_of(capsys, run.name, "--facts"))
    assert facts["record"]["rank"] == 1
    assert facts["run"]["state"] == "failed"


@pytest.mark.parametrize(("state", "expected"), [("done", "it is done"), ("paused", "stoker launch tale")])
def test_a_done_or_stopped_run_has_no_cause(
    run: RunDir, capsys: pytest.CaptureFixture[str], state: str, expected: str
) -> None:
    (run.path / "events.jsonl").unlink()
    run.write_exit(Exit(state=state, code=0, step=9, reason="as asked"))  # type: ignore[arg-type]
    text = output_of(capsys, run.name)
    assert text.startswith("nothing is wrong: ")
    assert expected in text
    assert json.loads(output_of(capsys, run.name, "--json"))["id"] is None


def test_status_of_a_failed_run_shows_the_cause(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", run.name]) == 0
    output = capsys.readouterr().out
    assert "why" in output
    assert "worker 1 was the first to fail" in output
    assert main(["status", run.name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["why"]["id"] == "worker-failed"


def test_an_unknown_run_is_refused_with_a_similar_name(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Did you mean tale?" in output_of(capsys, "tail", code=2)
    assert run.exists()


def test_a_run_outside_the_default_folder_is_named_by_its_path(
    run: RunDir, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (run.path / "events.jsonl").unlink()
    run.write_exit(Exit(state="paused", code=0, step=9, reason="as asked"))
    monkeypatch.chdir(run.path)
    assert f"stoker launch {run.path}\n" in output_of(capsys, run.name, "--runs", str(run.path.parent))
