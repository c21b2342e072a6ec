"""Diagnoses of runs on this machine, from their records: of real failing runs, and written by hand."""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.data.shards import INDEX_FILE, TokenSet
from stoker.observe.why import why
from stoker.rundir import DataRef, Exit, RunDir, events
from stoker.spec.data import Data
from stoker.spec.errors import UserError
from stoker.spec.run import RunSpec, Until
from stoker.supervise import run_exit
from stoker.supervise.workers.exit import WorkerExit


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.chdir(tmp_path)
    run = RunDir(tmp_path / "runs" / "tale")
    run.create(RunSpec(name="tale", data=Data(path="x"), until=Until(steps=100)), DataRef(shards="/nowhere", key="k"))
    run.add_event(events.World(attempt=1, workers=2, restart=0))
    run.add_event(events.Started(steps=100, tokens_per_step=512, chip="CPU", parameters=8), rank=0)
    return run


@pytest.fixture
def running(run: RunDir) -> Iterator[RunDir]:
    """The run, locked as if it was running."""
    with run.lock():
        yield run


def cause_id(run: RunDir) -> str | None:
    diagnosis = why(run)
    return diagnosis.causes[0].id if diagnosis.causes else None


def cause(run: RunDir) -> str:
    first = why(run).causes[0]
    return f"{first.cause}. {first.remedy}"


def add_steps(run: RunDir, number: int, *, every: float, ago: float = 0.0, **more: object) -> None:
    """Logs `number` steps, the last of them `ago` seconds ago."""
    last = time.time() - ago
    for step in range(number):
        record = {"step": step + 1, "loss": 2.0, "tokens_per_second": 100.0, "data_wait": 0.0}
        run.add_metrics(record | {"time": last - every * (number - 1 - step)} | more)


def backdate_events(run: RunDir, seconds: float) -> None:
    """Moves all events into the past."""
    lines = [json.loads(line) for line in (run.path / "events.jsonl").read_text().splitlines()]
    text = "".join(json.dumps(line | {"time": line["time"] - seconds}) + "\n" for line in lines)
    (run.path / "events.jsonl").write_text(text)


def test_running_done_and_stopped_runs_have_no_cause(running: RunDir) -> None:
    backdate_events(running, 100)
    assert cause_id(running) is None
    add_steps(running, 50, every=1.0)
    assert cause_id(running) is None


@pytest.mark.parametrize("state", ["done", "paused"])
def test_runs_that_ended_as_planned_have_no_cause(run: RunDir, state: str) -> None:
    run.write_exit(Exit(state=state, code=0, step=100, reason="all steps are done"))
    assert cause_id(run) is None


def test_the_first_failed_worker_is_named_with_its_own_error(run: RunDir) -> None:
    run.log(0).write_text("RuntimeError: Connection closed by peer [10.0.0.7]\n")
    run.log(1).write_text('Traceback (most recent call last):\n  File "x.py"\nKeyError: 42\nsome more words\n')
    run.add_event(events.Failed(code=1, signal=None, line="some more words", again=False), rank=1)
    run.write_exit(Exit(state="failed", code=3, step=4, reason="worker 1 ended with code 1", rank=1))
    assert cause_id(run) == "worker-failed"
    assert "worker 1 was the first to fail: KeyError: 42" in cause(run)
    assert "stoker launch" in cause(run)


def test_the_error_in_the_event_is_used_if_the_log_is_of_a_later_attempt(run: RunDir) -> None:
    run.log(1).write_text("loading\nup again\n")
    run.add_event(events.Failed(code=1, signal=None, line="no such layer", again=True), rank=1)
    assert "worker 1 was the first to fail: it printed no error; its last line: no such layer" in cause(run)


def test_the_error_above_an_abort_is_the_cause(run: RunDir) -> None:
    trace = ["Traceback (most recent call last):", '  File "x.py", line 3', "KeyError: 42"]
    lines = [*(f"[rank1]: {line}" for line in trace), "terminate called without an active exception"]
    run.log(1).write_text("\n".join(lines) + "\n")
    run.add_event(events.Failed(code=None, signal="SIGABRT", line=lines[-1], again=True), rank=1)
    assert "worker 1 crashed (SIGABRT): KeyError: 42" in cause(run)


def test_a_broken_connection_is_a_symptom(run: RunDir) -> None:
    line = "RuntimeError: Connection closed by peer [10.0.0.7]"
    run.log(0).write_text(f"{line}\n")
    run.add_event(events.Failed(code=1, signal=None, line=line, again=True), rank=0)
    assert cause_id(run) == "worker-lost-its-peers"
    assert "another worker" in cause(run)


def test_settings_that_the_run_has_are_not_in_the_remedy(run: RunDir) -> None:
    run.add_event(events.Failed(code=1, signal=None, line="MemoryError", again=True), rank=0)
    assert "stoker launch tale batch.micro=1" in cause(run)
    spec = run.spec()
    run.write_spec(spec.model_copy(update={"batch": spec.batch.model_copy(update={"micro": 1})}))
    assert cause_id(run) == "memory-refused-at-least"
    assert "batch.micro" not in cause(run)


@pytest.mark.parametrize("silent", [False, True])
def test_crashes_without_a_new_checkpoint_are_the_workers_failure(run: RunDir, silent: bool) -> None:
    spec = run.any_spec()
    worker = WorkerExit(rank=1, code=1, signal=None, line="KeyError: 42", output="")
    run.add_event(events.Failed(code=1, signal=None, line="KeyError: 42", again=False), rank=1)
    killed = run_exit.supervisor_killed(run, times=3)
    run.write_exit(killed if silent else run_exit.failed(run, spec, worker, code=3, times=3))
    assert cause_id(run) == "worker-failed"


def test_a_crash_that_the_run_recovered_from_is_no_cause(running: RunDir) -> None:
    running.add_event(events.Failed(code=1, signal=None, line="x", again=True), rank=1)
    running.add_event(events.World(attempt=2, workers=2, restart=1))
    assert cause_id(running) == "worker-failed"
    time.sleep(0.01)
    add_steps(running, 1, every=1.0)
    assert cause_id(running) is None


@pytest.mark.parametrize(
    ("line", "signal", "expected"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", None, "gpu-out-of-memory"),
        ("MemoryError", None, "memory-refused"),
        ("step 4", "SIGKILL", "worker-killed-here"),
        ("step 4", "SIGSEGV", "worker-crashed-by-signal"),
        ("requests.NameResolutionError: Failed to resolve 'hub'", None, "names-not-resolved"),
        ("ValueError: no", None, "worker-failed"),
    ],
)
def test_the_reason_of_a_crash_selects_the_cause(run: RunDir, line: str, signal: str | None, expected: str) -> None:
    run.log(0).write_text(line + "\n")
    run.add_event(events.Failed(code=None if signal else 1, signal=signal, line=line, again=False), rank=0)
    run.write_exit(Exit(state="failed", code=3, step=4, reason="worker 0 failed", rank=0))
    assert cause_id(run) == expected


def test_a_run_without_new_steps_is_stalled(running: RunDir) -> None:
    backdate_events(running, 1000)
    add_steps(running, 20, every=2.0, ago=300)
    assert cause_id(running) == "stalled"
    assert "no step for 300 s, and usually one is logged every 2 s" in cause(running)


def test_a_long_step_among_long_steps_is_no_stall(running: RunDir) -> None:
    backdate_events(running, 9000)
    add_steps(running, 20, every=120.0, ago=300)
    assert cause_id(running) is None


def test_a_run_that_waits_for_data_has_slow_data(running: RunDir) -> None:
    backdate_events(running, 1000)
    add_steps(running, 20, every=2.0, data_wait=0.45)
    assert cause_id(running) == "slow-data"
    assert "45 % of the time" in cause(running)


def test_a_run_that_slowed_down_is_reported_with_its_speed(running: RunDir) -> None:
    backdate_events(running, 1000)
    add_steps(running, 60, every=2.0, ago=50)
    add_steps(running, 20, every=2.0, tokens_per_second=30.0)
    assert cause_id(running) == "slowed"
    assert "30 % of its earlier speed" in cause(running)


def test_a_run_that_was_slow_for_some_seconds_has_no_cause(running: RunDir) -> None:
    backdate_events(running, 1000)
    add_steps(running, 100, every=0.5, ago=6)
    add_steps(running, 10, every=0.5, tokens_per_second=30.0)
    assert cause_id(running) is None


def test_a_run_waits_for_data_that_is_being_prepared(running: RunDir) -> None:
    running.add_event(events.WaitingForData(step=7), rank=0)
    assert cause_id(running) == "waiting-for-data"
    assert "step 7" in cause(running)


def test_missing_and_lost_nodes_are_named(running: RunDir) -> None:
    running.add_event(events.WaitingForNodes(joined=[0, 2], missing=[1, 3], least=4, most=4))
    assert cause_id(running) == "nodes-missing"
    assert "node 1, 3: 2 of 4 are up" in cause(running)
    running.add_event(events.NodeLost(node=3, host="x", pod="tale-3"))
    assert cause_id(running) == "node-lost"
    running.add_event(events.World(attempt=2, workers=8, restart=1))
    assert cause_id(running) is None


def test_an_interrupted_run_has_the_command_that_resumes_it(run: RunDir) -> None:
    assert cause_id(run) == "interrupted"
    assert "stoker launch tale" in cause(run)


def test_a_failed_save_is_a_cause_until_the_next_save(running: RunDir) -> None:
    running.add_event(events.CheckpointFailed(step=4, reason="Input/output error"), rank=0)
    assert cause_id(running) == "save-fails"
    running.add_event(events.CheckpointSaved(step=6, seconds=1.0), rank=0)
    assert cause_id(running) is None


def test_a_full_disk_is_a_cause(run: RunDir, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a disk of its own cannot be mounted here: {done.stderr.strip()}")
    try:
        full = RunDir(disk / "tale")
        full.create(run.any_spec(), None)
        assert cause_id(full) == "disk-full"
        full.write_exit(Exit(state="done", code=0, step=100, reason="all steps are done"))
        assert cause_id(full) is None
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


@pytest.mark.parametrize("damage", ["index", "shard", "hash"])
def test_unreadable_data_is_a_cause(run: RunDir, tokens: Path, tmp_path: Path, damage: str) -> None:
    copy = shutil.copytree(tokens, tmp_path / "set")
    index = copy / INDEX_FILE
    shard = copy / json.loads(index.read_text())["train"][0]["file"]
    if damage == "index":
        index.write_text("{")
    else:
        shard.write_bytes(b"" if damage == "shard" else shard.read_bytes()[::-1])
    with pytest.raises(UserError) as refused:
        TokenSet.open(copy).verify()
    error = refused.value
    run.write_exit(Exit(state="failed", code=2, step=None, reason=error.problem, remedy=error.remedy, rank=0))
    assert cause_id(run) == "data-unreadable"
    assert "stoker launch tale" in cause(run)


def test_a_checkpoint_of_another_model_is_a_cause(run: RunDir) -> None:
    reason, remedy = "the checkpoint of step 4 does not fit the model: size mismatch", "Bring back the code"
    run.write_exit(Exit(state="failed", code=2, step=4, reason=reason, remedy=remedy, rank=0))
    assert cause_id(run) == "checkpoint-unreadable"
    assert "checkpoint.resume=" in cause(run)


def test_a_failing_script_is_a_cause_until_it_is_fixed(stoker) -> None:
    script = stoker.folder / "broken.py"
    script.write_text("import sys\nprint('up', flush=True)\nraise RuntimeError('no such layer')\n")
    stoker("train", f"script={script}", "name=broken", "on.workers=2", "on.max_restarts=0", code=3)
    broken = stoker.run("broken")
    assert cause_id(broken) == "worker-failed"
    assert "RuntimeError: no such layer" in cause(broken)
    script.write_text("print('up')\n")
    stoker("train", f"script={script}", "name=broken", "on.workers=2", "on.max_restarts=0")
    assert cause_id(broken) is None
