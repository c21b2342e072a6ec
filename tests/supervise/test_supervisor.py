"""A real supervisor process over small worker scripts that need no torch."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from stoker.rundir import DataRef, RunDir
from stoker.spec.data import Data
from stoker.spec.on import LocalOn
from stoker.spec.run import RunSpec, Until
from tests.processes import is_alive
from tests.waiting import until
from tests.written import events_of

Start = Callable[..., "subprocess.Popen[bytes]"]

HEAD = """
import json, os, signal, sys, time
from pathlib import Path
run, rank, attempt = Path(os.environ["STOKER_RUN_DIR"]), int(os.environ["RANK"]), int(os.environ["STOKER_ATTEMPT"])
(run / "ledger" / f"attempt-{attempt:04d}-rank-{rank:04d}.jsonl").touch()
(run / f"pid-{attempt}-{rank}").write_text(str(os.getpid()))

def save(step):
    folder = run / "checkpoints" / f"step-{step:09d}"
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps({"step": step, "files": {}}))

def leave(state, code, reason=""):
    (run / "exit.json").write_text(json.dumps({"state": state, "code": code, "step": 7, "reason": reason}))
    sys.exit(code)
"""


def new_run(folder: Path, *, max_restarts: int = 3, env: dict[str, str] | None = None) -> RunDir:
    run = RunDir(folder / "tale")
    spec = RunSpec(
        name="tale", data=Data(path="x"), until=Until(steps=10), on=LocalOn(max_restarts=max_restarts), env=env or {}
    )
    run.create(spec, DataRef(shards="/nowhere", key="k"))
    return run


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """start(run, script, workers=2) -> the supervisor's process, killed when the test ends."""
    processes: list[subprocess.Popen[bytes]] = []

    def begin(run: RunDir, script: str, *, workers: int = 2) -> "subprocess.Popen[bytes]":
        file = tmp_path / "worker.py"
        file.write_text(HEAD + script)
        argv = [sys.executable, "-m", "stoker.supervise", str(run.path), "--workers", str(workers)]
        with open(tmp_path / "supervisor.log", "ab") as log:
            processes.append(subprocess.Popen([*argv, "--", sys.executable, str(file)], stdout=log, stderr=log))
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.wait()


def pids(run: RunDir, *, attempt: int, workers: int = 2) -> list[int]:
    """The process ids of an attempt's workers, once all of them run."""
    files = [run.path / f"pid-{attempt}-{rank}" for rank in range(workers)]
    until(lambda: all(file.exists() and file.read_text() for file in files))
    return [int(file.read_text()) for file in files]


def kinds(run: RunDir) -> list[str]:
    return [event["kind"] for event in events_of(run)]


SAVE_WHEN_ASKED = """
signal.signal(signal.SIGTERM, lambda *_: leave("paused", 75, "asked") if rank == 0 else sys.exit(75))
(run / f"ready-{rank}").touch()
time.sleep(60)
"""


def test_workers_that_finish_end_the_run_with_the_reason_that_they_wrote(tmp_path: Path, start: Start) -> None:
    run = new_run(tmp_path)
    assert start(run, 'leave("done", 0, "all steps") if rank == 0 else None').wait() == 0
    exit = run.exit()
    assert exit is not None
    assert (exit.state, exit.reason) == ("done", "all steps")
    assert kinds(run) == ["world"]
    assert run.holder() is None


def test_a_crash_starts_all_workers_again_as_a_new_attempt(tmp_path: Path, start: Start) -> None:
    run = new_run(tmp_path)
    script = """
    if attempt == 1 and rank == 1: print("out of luck"); sys.exit(1)
    if attempt == 1: time.sleep(60)
    leave("done", 0) if rank == 0 else None
    """
    assert start(run, dedent(script)).wait() == 0
    assert kinds(run) == ["world", "failed", "world"]
    failed = events_of(run)[1]
    assert (failed["rank"], failed["code"], failed["signal"], failed["again"]) == (1, 1, None, True)
    assert failed["line"] == "out of luck"
    assert [event["attempt"] for event in events_of(run) if event["kind"] == "world"] == [1, 2]


def test_a_worker_that_was_killed_is_the_root_cause_not_the_peer_that_failed_with_it(
    tmp_path: Path, start: Start
) -> None:
    run = new_run(tmp_path, max_restarts=0)
    script = """
    other = run / f"pid-1-{1 - rank}"
    while not other.exists() or not other.read_text(): time.sleep(0.001)
    if rank == 0:
        stat = Path("/proc", other.read_text(), "stat")
        while stat.exists() and ") Z " not in stat.read_text(): time.sleep(0.001)
        print("connection closed by peer"); sys.exit(1)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    assert start(run, dedent(script)).wait() == 3
    exit = run.exit()
    assert exit is not None
    assert (exit.state, exit.code, exit.rank) == ("failed", 3, 1)
    assert "SIGKILL" in exit.reason


def test_peers_of_a_dead_worker_that_ignore_sigterm_are_killed(tmp_path: Path, start: Start) -> None:
    run = new_run(tmp_path, max_restarts=0)
    script = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if rank == 1:
        while not (run / "pid-1-0").exists(): time.sleep(0.01)
        sys.exit(1)
    time.sleep(60)
    """
    assert start(run, dedent(script)).wait() == 3
    assert not is_alive(pids(run, attempt=1)[0])


def test_the_run_fails_after_max_restarts_crashes_without_a_new_checkpoint(tmp_path: Path, start: Start) -> None:
    run = new_run(tmp_path, max_restarts=2)
    assert start(run, 'sys.exit("the same again")', workers=1).wait() == 3
    exit = run.exit()
    assert exit is not None
    assert "3 times in a row" in exit.reason
    assert "the same again" in exit.reason
    assert kinds(run).count("world") == 3
    assert [event["again"] for event in events_of(run) if event["kind"] == "failed"] == [True, True, False]


def test_a_run_that_saves_between_crashes_is_never_given_up(tmp_path: Path, start: Start) -> None:
    run = new_run(tmp_path, max_restarts=1)
    script = """
    if attempt == 6: leave("done", 0)
    save(attempt)
    sys.exit(1)
    """
    assert start(run, dedent(script), workers=1).wait() == 0
    assert kinds(run).count("failed") == 5


@pytest.mark.parametrize("code", [2, 3])
def test_a_worker_with_an_exit_code_for_do_not_restart_is_not_restarted(
    tmp_path: Path, start: Start, code: int
) -> None:
    run = new_run(tmp_path)
    script = f"""
    if rank == 1: print("loss is NaN"); sys.exit({code})
    time.sleep(60)
    """
    assert start(run, dedent(script)).wait() == code
    exit = run.exit()
    assert exit is not None
    assert (exit.state, exit.code, exit.rank) == ("failed", code, 1)
    assert "loss is NaN" in exit.reason
    assert kinds(run) == ["world"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_request_to_stop_reaches_all_workers_and_waits_for_their_save(
    tmp_path: Path, start: Start, number: signal.Signals
) -> None:
    run = new_run(tmp_path)
    supervisor = start(run, SAVE_WHEN_ASKED)
    until(lambda: all((run.path / f"ready-{rank}").exists() for rank in (0, 1)))
    supervisor.send_signal(number)
    assert supervisor.wait() == 75
    exit = run.exit()
    assert exit is not None
    assert (exit.state, exit.step, exit.reason) == ("paused", 7, "asked")
    assert kinds(run) == ["world", "stopping"]


def test_a_worker_stopped_before_it_could_handle_signals_leaves_a_paused_run(tmp_path: Path, start: Start) -> None:
    run = new_run(tmp_path)
    supervisor = start(run, "if rank == 0: save(4)\ntime.sleep(60)")
    pids(run, attempt=1)
    until(lambda: run.saved())
    supervisor.terminate()
    assert supervisor.wait() == 75
    exit = run.exit()
    assert exit is not None
    assert (exit.state, exit.code, exit.step) == ("paused", 75, 4)
    assert kinds(run) == ["world", "stopping"]


def test_a_second_request_ends_a_save_that_takes_too_long(tmp_path: Path, start: Start) -> None:
    run = new_run(tmp_path)
    script = """
    signal.signal(signal.SIGTERM, lambda *_: (run / f"asked-{rank}").touch())
    (run / f"ready-{rank}").touch()
    while True: time.sleep(1)
    """
    supervisor = start(run, dedent(script))
    until(lambda: all((run.path / f"ready-{rank}").exists() for rank in (0, 1)))
    supervisor.terminate()
    until(lambda: all((run.path / f"asked-{rank}").exists() for rank in (0, 1)))
    assert supervisor.poll() is None
    supervisor.terminate()
    assert supervisor.wait() == 75


def test_workers_die_with_a_supervisor_that_is_killed(tmp_path: Path, start: Start) -> None:
    run = new_run(tmp_path)
    supervisor = start(run, "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)")
    workers = pids(run, attempt=1)
    supervisor.kill()
    until(lambda: not any(is_alive(pid) for pid in workers), seconds=30)
    until(lambda: run.holder() is None)  # its last thread may end a moment later
    assert run.exit() is None


def test_a_supervisor_dies_with_the_parent_that_it_was_given(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    worker = tmp_path / "worker.py"
    worker.write_text(HEAD + "time.sleep(60)")
    parent = tmp_path / "parent.py"
    parent.write_text(
        "import os, subprocess, sys, time\n"
        f"argv = [sys.executable, '-m', 'stoker.supervise', {str(run.path)!r}, '--workers', '2']\n"
        f"argv += ['--parent', str(os.getpid()), '--', sys.executable, {str(worker)!r}]\n"
        "subprocess.Popen(argv, start_new_session=True)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, str(parent)])
    workers = pids(run, attempt=1)
    holder = run.holder()
    assert holder is not None
    process.kill()
    process.wait()
    until(lambda: not any(is_alive(pid) for pid in (*workers, holder["pid"])), seconds=30)


def test_a_second_supervisor_of_one_run_is_refused(tmp_path: Path, start: Start) -> None:
    run = new_run(tmp_path)
    first = start(run, "time.sleep(60)")
    workers = pids(run, attempt=1)
    assert start(run, "time.sleep(60)").wait() == 2
    log = (tmp_path / "supervisor.log").read_text()
    assert f"is being written by process {first.pid}" in log
    assert log.count("\n") == 1
    assert all(is_alive(pid) for pid in workers)


def test_a_folder_that_is_no_run_is_refused_in_one_line(tmp_path: Path, start: Start) -> None:
    assert start(RunDir(tmp_path), "").wait() == 2
    assert "is not a run directory" in (tmp_path / "supervisor.log").read_text()


def test_workers_get_the_environment_that_torchrun_would_give_them(tmp_path: Path, start: Start) -> None:
    run = new_run(tmp_path, env={"COLOUR": "blue", "RANK": "9"})
    start(run, '(run / f"env-{rank}.json").write_text(json.dumps(dict(os.environ)))', workers=3).wait()
    seen = [json.loads((run.path / f"env-{rank}.json").read_text()) for rank in range(3)]
    for rank, env in enumerate(seen):
        assert (env["RANK"], env["LOCAL_RANK"], env["ROLE_RANK"], env["GROUP_RANK"]) == (str(rank),) * 3 + ("0",)
        assert (env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"], env["ROLE_WORLD_SIZE"]) == ("3", "3", "3")
        assert (env["MASTER_ADDR"], env["TORCHELASTIC_RESTART_COUNT"], env["TORCHELASTIC_RUN_ID"]) == (
            "127.0.0.1",
            "0",
            "tale",
        )
        assert (env["STOKER_RUN_DIR"], env["STOKER_ATTEMPT"]) == (str(run.path), "1")
        assert (env["COLOUR"], env["TOKENIZERS_PARALLELISM"], env["PYTHONUNBUFFERED"]) == ("blue", "false", "1")
        assert env["OMP_NUM_THREADS"]
    assert len({env["MASTER_PORT"] for env in seen}) == 1


def test_each_worker_has_its_own_session_and_log(tmp_path: Path, start: Start) -> None:
    run = new_run(tmp_path)
    start(run, 'print("hello from", rank, os.getsid(0) == os.getpid()); print("oh", file=sys.stderr)').wait()
    for rank in (0, 1):
        assert [line[25:] for line in run.log(rank).read_text().splitlines()] == [f"hello from {rank} True", "oh"]


def test_a_run_whose_folder_is_moved_ends_with_a_message(tmp_path: Path, start: Start) -> None:
    run = new_run(tmp_path)
    process = start(run, "(run / f'ready-{rank}').touch()\nwhile True: time.sleep(0.1)")
    workers = pids(run, attempt=1)
    moved = run.path.rename(tmp_path / "moved")
    assert process.wait() == 2
    log = (tmp_path / "supervisor.log").read_text()
    assert "the folder of run 'tale' is gone" in log
    assert "resume it where it is: stoker launch FOLDER" in log
    until(lambda: not any(map(is_alive, workers)))
    assert not run.path.exists(), "a second, torn run"
    assert RunDir(moved).exists()
