import json
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from stoker.cli.logs import moment
from stoker.cli.main import main
from stoker.rundir import DataRef, RunDir, events
from stoker.spec.data import Data
from stoker.spec.errors import UserError
from stoker.spec.run import RunSpec, Until
from tests.waiting import PATIENCE_S

NOW = datetime(2026, 11, 15, 12, 0, 0)


def stamped(ago: timedelta, text: str) -> str:
    return f"{datetime.now(UTC) - ago:%Y-%m-%dT%H:%M:%S}.500Z {text}\n"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "tale")
    run.create(RunSpec(name="tale", data=Data(path="x"), until=Until(steps=8)), DataRef(shards="/nowhere", key="k"))
    return run


def test_following_logs_ends_with_the_run(run: RunDir, stoker) -> None:
    run.log(0).write_text("one\ntwo\n")
    with run.lock():
        follower = stoker.start("logs", str(run.path), "-f", "--tail", "1")
        assert follower.stdout.readline() == "two\n"
        with run.log(0).open("a") as file:
            file.write("three\n")
    assert follower.communicate(timeout=PATIENCE_S)[0] == "three\n"
    assert follower.returncode == 0


def test_following_in_a_pod_ends_when_its_stdin_is_closed(run: RunDir) -> None:
    run.log(0).write_text("one\n")
    options = json.dumps({"rank": 0, "tail": None, "since": None, "follow": True})
    argv = [sys.executable, "-m", "stoker.backends.kubernetes.volume.in_pod", "logs", str(run.path), options]
    with run.lock(), subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as follower:
        assert follower.stdin
        assert follower.stdout
        assert json.loads(follower.stdout.readline())["line"] == "one"
        time.sleep(0.5)
        assert follower.poll() is None
        follower.stdin.close()
        assert follower.wait(timeout=PATIENCE_S) == 0


def test_a_run_that_never_started_has_no_logs(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", str(run.path)]) == 2
    assert "has no logs yet" in capsys.readouterr().err


def test_workers_that_have_printed_nothing_are_no_error(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    run.add_event(events.World(attempt=1, workers=1, restart=0))
    assert main(["logs", str(run.path)]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"there are no log lines; see what happened: stoker events {run.path}\n"


@pytest.mark.parametrize(
    ("arguments", "start"), [(["--tail", "-3"], "--tail is -3. "), (["--since", "soon"], "--since is 'soon'")]
)
def test_an_invalid_number_or_time_is_refused_in_one_line(
    run: RunDir, capsys: pytest.CaptureFixture[str], arguments: list[str], start: str
) -> None:
    assert main(["logs", str(run.path), *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"stoker: {start}")


def test_the_timestamp_of_a_line_is_removed_and_is_in_the_json(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    run.log(0).write_text("2026-11-15T04:57:26.123Z   indented: é\nwithout a time\n")
    assert main(["logs", str(run.path)]) == 0
    assert capsys.readouterr().out == "  indented: é\nwithout a time\n"
    assert main(["logs", str(run.path), "--json"]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first == {"time": 1794718646.123, "rank": 0, "line": "  indented: é"}
    assert second == {"time": None, "rank": 0, "line": "without a time"}


def test_lines_of_all_ranks_are_sorted_by_time(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    run.log(0).write_text(stamped(timedelta(hours=2), "old") + stamped(timedelta(minutes=5), "zero"))
    run.log(1).write_text(stamped(timedelta(minutes=9), "one") + "more of one\n" + stamped(timedelta(0), "last"))
    assert main(["logs", str(run.path), "--all"]) == 0
    assert capsys.readouterr().out.splitlines() == ["[0] old", "[1] one", "[1] more of one", "[0] zero", "[1] last"]
    assert main(["logs", str(run.path), "--all", "--since", "10m"]) == 0
    assert capsys.readouterr().out.splitlines() == ["[1] one", "[1] more of one", "[0] zero", "[1] last"]
    assert main(["logs", str(run.path), "--all", "--since", "6m", "--tail", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == ["[0] zero", "[1] last"]


def test_a_real_run_is_followed_to_its_end_in_a_terminal_and_in_a_pipe(stoker, script: Path, terminal) -> None:
    name = json.loads(stoker("launch", script.name, "--json").stdout)["name"]
    piped = stoker.start("logs", name, "--all", "-f")
    screen = terminal("logs", name, "-f", "--rank", "1")
    screen.read(until="worker 1 is up")
    (stoker.run(name).path / "enough").touch()
    assert screen.read().splitlines() == ["worker 1 is up", "worker 1 has had enough"]
    output, _ = piped.communicate(timeout=300)
    assert sorted(output.splitlines()) == sorted(
        f"[{rank}] worker {rank} {state}" for rank in (0, 1) for state in ("is up", "has had enough")
    )


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("10m", NOW - timedelta(minutes=10)),
        ("1h30m", NOW - timedelta(minutes=90)),
        ("11:30", NOW.replace(hour=11, minute=30)),
        ("12:30", NOW.replace(hour=12, minute=30) - timedelta(days=1)),
        ("2026-11-14", datetime(2026, 11, 14)),
        ("2026-11-14T10:00:05", datetime(2026, 11, 14, 10, 0, 5)),
        ("2026-11-14T10:00:05Z", datetime(2026, 11, 14, 10, 0, 5, tzinfo=UTC)),
    ],
)
def test_forms_of_a_time(text: str, when: datetime) -> None:
    assert moment(text, now=NOW) == when.timestamp()


@pytest.mark.parametrize("text", ["soon", "10x", "", "2026-13-01"])
def test_an_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="which is not a time"):
        moment(text, now=NOW)
