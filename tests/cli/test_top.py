import json
from pathlib import Path

import pytest

from stoker.cli.main import main
from stoker.rundir import DataRef, RunDir
from stoker.spec.data import Data
from stoker.spec.run import RunSpec, Until


@pytest.fixture
def name(stoker, script: Path, eventually) -> str:
    """A run whose two workers are up."""
    name = json.loads(stoker("launch", script.name, "--json").stdout)["name"]
    eventually(lambda: all((stoker.run(name).path / f"alive-{rank}").exists() for rank in (0, 1)))
    return name


def test_top_shows_what_each_worker_uses(stoker, name: str) -> None:
    head, names, *rows = stoker("top", name).stdout.splitlines()
    assert head.split()[:5] == ["run", name, "running", "step", "0"]
    assert names.split() == ["RANK", "PID", "CPU", "MEMORY", "THREADS"]
    assert [row.split()[0] for row in rows] == ["0", "1"]
    usage = json.loads(stoker("top", name, "--json").stdout)
    assert (usage["name"], usage["state"]) == (name, "running")
    assert [(worker["rank"], worker["threads"], worker["gpu"]) for worker in usage["workers"]] == [
        (0, 1, None),
        (1, 1, None),
    ]
    assert all(worker["memory"] > 2**20 for worker in usage["workers"])


def test_top_is_watched_until_the_run_ends(stoker, name: str, terminal) -> None:
    screen = terminal("top", name, "--watch", "0.1")
    screen.read(until="THREADS")
    piped = stoker.start("top", name, "--watch", "0.1")
    for _ in range(6):
        assert "\x1b" not in piped.stdout.readline()
    (stoker.run(name).path / "enough").touch()
    output = screen.read()
    assert output.count("\x1b[H\x1b[2J") == output.count(f"run {name}") > 1
    assert "no worker is running" in output.splitlines()[-1]
    assert screen.process.wait() == 0
    assert piped.communicate(timeout=300)[0].splitlines()[-1] == "no worker is running"
    assert piped.returncode == 0


def test_a_run_that_is_not_running_has_no_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDir(tmp_path / "tale")
    run.create(RunSpec(name="tale", data=Data(path="x"), until=Until(steps=8)), DataRef(shards="/nowhere", key="k"))
    assert main(["top", str(run.path)]) == 0
    assert capsys.readouterr().out.splitlines() == ["run tale  interrupted  step 0", "no worker is running"]
