"""A run folder with any damage: verbs that read it print no traceback, and other runs are not affected."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.data.ledger import Ledger
from stoker.rundir import DataRef, Exit, RunDir, events
from stoker.spec.data import Data
from stoker.spec.run import RunSpec, Until

FILES = (
    "spec.yaml", "data.json", "origins.json", "place.json", "seen.json", "metrics.jsonl", "events.jsonl", "exit.json",
    "lock", "ledger/attempt-0001-rank-0000.jsonl", "logs/rank-0.log", "checkpoints/step-000000002/manifest.json",
    ".members/leader.json", "ledger", "logs", "checkpoints", ".members",
)  # fmt: skip
DAMAGE: dict[str, Callable[[Path], object]] = {
    "bytes": lambda path: path.write_bytes(bytes(range(256)) * 8),
    "empty": Path.touch,
    "folder": Path.mkdir,
    "fifo": os.mkfifo,
    "loop": lambda path: path.symlink_to(path.name),
    "link": lambda path: path.symlink_to(Path("secret").absolute()),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "deep": lambda path: path.write_bytes(b'{"time":1,"step":1,"kind":"world","a":' + b"[" * 10**5 + b"\n"),
    "others": lambda path: path.write_bytes(b'3\n[]\nnull\n"x"\n{}\n{"kind": 3}\n{"step": 1e999}\n'),
}
SECRET = "the text of a file outside of the run"
VERBS = ("status", "why", "events", "logs", "stop")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = RunDir(tmp_path_factory.mktemp("template") / "tale")
    run.create(RunSpec(name="tale", data=Data(path="x"), until=Until(steps=2)), DataRef(shards="/x", key="k"))
    run.add_event(events.World(attempt=1, workers=1, restart=0))
    run.add_event(events.Started(attempt=1, step=0, world=1, chip="cpu", steps=2, tokens_per_step=8, parameters=8))
    for step in (1, 2):
        run.add_metrics({"step": step, "time": 1.0, "loss": 2.5, "tokens_per_second": 8.0, "val_loss": 3.0})
    Ledger(run.ledger, attempt=1, rank=0, world=1, start=0).close()
    run.log(0).write_text("2026-11-15T04:57:26.123Z what the worker printed\n")
    run.checkpoint(2).mkdir()
    (run.checkpoint(2) / "manifest.json").write_text('{"step": 2, "files": {}}')
    run.write_exit(Exit(state="done", code=0, step=2, reason="all 2 steps are done"))
    (run.path / "lock").touch()
    return run.path


def damaged_run(template: Path, folder: Path, name: str, damage: str) -> Path:
    run = folder / "runs" / "tale"
    shutil.copytree(template, run)
    file = run / name
    if file.is_dir():
        shutil.rmtree(file)
    file.unlink(missing_ok=True)
    file.parent.mkdir(exist_ok=True)
    Path("secret").write_text(SECRET)
    DAMAGE[damage](file)
    return run


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", FILES)
def test_any_damage_gives_no_traceback(command, template: Path, tmp_path: Path, name: str, damage: str) -> None:
    damaged_run(template, tmp_path, name, damage)
    shutil.copytree(template, tmp_path / "runs" / "other")
    listed = command("ps", "--json")
    assert listed.returncode == 0, listed.stderr
    rows = {row["name"]: row for row in json.loads(listed.stdout)}
    assert rows.keys() == {"tale", "other"}
    assert (rows["other"]["state"], rows["other"]["step"]) == ("done", 2)
    assert rows["tale"]["state"] != "unknown" or rows["tale"]["reason"]
    assert command("ps").returncode == 0
    for verb in VERBS:
        done = command(verb, "tale")
        assert done.returncode in (0, 2), f"{verb}: {done}"
        assert SECRET not in done.stdout


def test_a_run_that_cannot_be_read_is_listed_with_the_reason(command, template: Path, tmp_path: Path) -> None:
    damaged_run(template, tmp_path, "exit.json", "others")
    output = command("ps").stdout.splitlines()
    assert output[1].split()[:2] == ["tale", "unknown"]
    assert output[2] == "tale: exit.json is damaged, so how the run ended is not known"


def test_the_number_of_skipped_records_is_shown(command, template: Path, tmp_path: Path) -> None:
    run = damaged_run(template, tmp_path, "metrics.jsonl", "others")
    shutil.copy(template / "metrics.jsonl", run / "metrics.jsonl")
    with (run / "events.jsonl").open("a") as file:
        file.write('{"kind": "world"}\n{"time": 1}\n')
    assert "skipped     2 records that could not be read" in command("status", "tale").stdout
    assert json.loads(command("status", "tale", "--json").stdout)["skipped"] == 2
    events = command("events", "tale")
    assert events.returncode == 0
    assert events.stdout.count("\n") == 2
    assert events.stderr == "records that could not be read were skipped: 2 (2 in events.jsonl)\n"


def test_a_log_is_not_read_through_a_link(command, template: Path, tmp_path: Path) -> None:
    run = damaged_run(template, tmp_path, "logs/rank-0.log", "link")
    done = command("logs", "tale")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"stoker: {run}/logs/rank-0.log is not a regular file. ")
    shutil.rmtree(run / "logs")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank-0.log").write_text(SECRET)
    (run / "logs").symlink_to(tmp_path / "logs")
    assert (command("logs", "tale").returncode, command("logs", "tale").stdout) == (2, "")


def test_a_long_line_of_a_log_is_shown_whole(command, template: Path, tmp_path: Path) -> None:
    run = damaged_run(template, tmp_path, "logs/rank-0.log", "empty")
    (run / "logs" / "rank-0.log").write_text("x" * 3_000_000 + "\nlast\n")
    output = command("logs", "tale").stdout
    assert output.replace("\n", "") == "x" * 3_000_000 + "last"
    assert command("logs", "tale", "--tail", "1").stdout == "last\n"
