"""STOKER_RUNS: where runs are kept by default."""

import time
from pathlib import Path

import pytest

from stoker.api.run import open_run
from stoker.cli.main import main
from stoker.rundir import DataRef, RunDir
from stoker.rundir.commands import command_name
from stoker.spec.data import Data
from stoker.spec.run import RunSpec, Until


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run outside of the current folder."""
    run = RunDir(tmp_path / "mine" / "tale")
    run.create(RunSpec(name="tale", data=Data(path="x"), until=Until(steps=8)), DataRef(shards="/nowhere", key="k"))
    run.add_metrics({"step": 4, "time": time.time(), "loss": 2.5})
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return run


def test_runs_are_kept_in_stoker_runs(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_name(run) == str(run.path)
    monkeypatch.setenv("STOKER_RUNS", str(run.path.parent))
    assert main(["status", "tale"]) == 0
    assert "2.5000" in capsys.readouterr().out
    assert open_run("tale").path == run.path
    assert command_name(run) == "tale"


def test_the_option_overrides_the_variable(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STOKER_RUNS", "/nowhere")
    assert main(["ps", "--runs", str(run.path.parent)]) == 0
    assert "tale" in capsys.readouterr().out


@pytest.mark.parametrize("value", ["", None])
def test_the_default_folder_is_runs(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str | None
) -> None:
    if value is not None:
        monkeypatch.setenv("STOKER_RUNS", value)
    assert main(["ps"]) == 0
    assert capsys.readouterr().out.startswith(f"no runs in {Path('runs').absolute()}")
    assert run.exists()
