"""A real supervisor process over a user's scripts, which do not know Stoker."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from stoker.rundir import Exit, RunDir
from stoker.spec.on import LocalOn
from stoker.spec.run import ScriptSpec
from stoker.supervise.nodes.rendezvous import SingleNodeRendezvous
from stoker.supervise.recorder import recorder
from stoker.supervise.signals import Signals
from stoker.supervise.supervisor import supervise
from stoker.supervise.workers.launcher import WorkerLauncher
from tests.waiting import until
from tests.written import events_of

Start = Callable[..., "subprocess.Popen[bytes]"]
HEAD = """
import os, signal, sys, time
from pathlib import Path
run, rank, attempt = Path(os.environ["STOKER_RUN_DIR"]), int(os.environ["RANK"]), int(os.environ["STOKER_ATTEMPT"])
"""


def new_run(folder: Path, script: str, *, max_restarts: int = 3, secrets: dict[str, str] | None = None) -> RunDir:
    file = folder / "train.py"
    file.write_text(HEAD + dedent(script))
    run = RunDir(folder / "tale")
    spec = ScriptSpec(name="tale", script=str(file), on=LocalOn(max_restarts=max_restarts), secrets=secrets or {})
    run.create(spec, None)
    return run


def command(run: RunDir) -> list[str]:
    return [sys.executable, str(run.path.parent / "train.py")]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """start(run, workers=2) -> the supervisor's process, killed when the test ends."""
    processes: list[subprocess.Popen[bytes]] = []

    def begin(run: RunDir, *, workers: int = 2, env: dict[str, str] | None = None) -> "subprocess.Popen[bytes]":
        argv = [sys.executable, "-m", "stoker.supervise", str(run.path), "--workers", str(workers), "--", *command(run)]
        with open(tmp_path / "supervisor.log", "ab") as log:
            processes.append(subprocess.Popen(argv, stdout=log, stderr=log, env=os.environ | (env or {})))
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.wait()


def ended(run: RunDir) -> Exit:
    exit = run.exit()
    assert exit is not None
    return exit


def kinds(run: RunDir) -> list[str]:
    return [event["kind"] for event in events_of(run)]


def test_a_script_that_succeeds_is_done_and_has_a_loss_curve(tmp_path: Path, start: Start) -> None:
    run = new_run(tmp_path, 'for step in (10, 20): print(f"step {step} loss {step / 10} of rank {rank}")')
    assert start(run).wait() == 0
    assert (ended(run).state, ended(run).step) == ("done", 20)
    assert [(record["step"], record["loss"], record["world"]) for record in run.metrics()] == [(10, 1, 2), (20, 2, 2)]


def test_a_crash_restarts_all_workers_and_each_attempt_has_its_number(tmp_path: Path, start: Start) -> None:
    script = """
    print("count", os.environ["TORCHELASTIC_RESTART_COUNT"], "of", os.environ["TORCHELASTIC_MAX_RESTARTS"])
    (run / f"attempt-{attempt}-{rank}").touch()
    if attempt < 3 and rank == 1:
        while not (run / f"attempt-{attempt}-0").exists(): time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    if attempt < 3: time.sleep(60)
    """
    run = new_run(tmp_path, script)
    assert start(run).wait() == 0
    assert kinds(run) == ["world", "failed", "world", "failed", "world"]
    assert [event["attempt"] for event in events_of(run) if event["kind"] == "world"] == [1, 2, 3]
    assert {event["signal"] for event in events_of(run) if event["kind"] == "failed"} == {"SIGKILL"}
    counts = [line[25:] for line in run.log(0).read_text().splitlines()]
    assert counts == ["count 0 of 3", "count 1 of 3", "count 2 of 3"]
    assert all((run.path / f"attempt-{attempt}-{rank}").exists() for attempt in (1, 2, 3) for rank in (0, 1))


def test_a_script_that_crashes_every_time_fails(tmp_path: Path, start: Start) -> None:
    run = new_run(tmp_path, 'sys.exit("out of luck")', max_restarts=2)
    assert start(run, workers=1).wait() == 3
    assert ended(run).state == "failed"
    assert "out of luck, 3 times in a row and never for long" in ended(run).reason
    assert "checkpoint" not in ended(run).reason
    assert kinds(run).count("world") == 3


def test_a_script_that_runs_for_long_between_crashes_is_always_restarted(tmp_path: Path) -> None:
    run = new_run(tmp_path, "sys.exit(0 if attempt == 4 else 1)", max_restarts=1)
    with Signals() as signals, run.lock():
        launcher = WorkerLauncher(run=run, command=command(run), workers=1)
        rendezvous = SingleNodeRendezvous(launcher, record=recorder(run))
        assert supervise(run, rendezvous=rendezvous, signals=signals, stable_after_s=0.0) == 0
    assert kinds(run).count("failed") == 3


@pytest.mark.parametrize("code", [2, 3])
def test_a_script_may_exit_with_a_code_for_do_not_restart(tmp_path: Path, start: Start, code: int) -> None:
    run = new_run(tmp_path, f'print("unrecognized arguments: --lr"); sys.exit({code})')
    assert start(run).wait() == code
    assert "unrecognized arguments: --lr" in ended(run).reason
    assert kinds(run) == ["world"]


def test_a_script_may_pause_itself(tmp_path: Path, start: Start) -> None:
    run = new_run(tmp_path, "sys.exit(75)")
    assert start(run).wait() == 75
    assert (ended(run).state, kinds(run)) == ("paused", ["world"])


@pytest.mark.parametrize("code", [0, 1, 2, 75])
def test_whatever_a_script_ends_with_when_it_is_stopped_is_a_pause(tmp_path: Path, start: Start, code: int) -> None:
    script = f"""
    signal.signal(signal.SIGTERM, lambda *_: ((run / f"saved-{{rank}}").touch(), sys.exit({code})))
    print("step 7 loss 1")
    (run / f"ready-{{rank}}").touch()
    time.sleep(60)
    """
    run = new_run(tmp_path, script)
    supervisor = start(run)
    until(lambda: all((run.path / f"ready-{rank}").exists() for rank in (0, 1)))
    supervisor.terminate()
    assert supervisor.wait() == 75
    assert all((run.path / f"saved-{rank}").exists() for rank in (0, 1))
    assert (ended(run).state, ended(run).code, ended(run).step) == ("paused", 75, 7)
    assert kinds(run) == ["world", "stopping"]


def test_a_worker_that_dies_of_sigterm_does_not_keep_another_from_saving(tmp_path: Path, start: Start) -> None:
    script = """
    def save(*_):
        time.sleep(5)
        (run / "saved").touch()
        sys.exit(0)
    if rank == 0: signal.signal(signal.SIGTERM, save)
    (run / f"ready-{rank}").touch()
    time.sleep(60)
    """
    run = new_run(tmp_path, script)
    supervisor = start(run)
    until(lambda: all((run.path / f"ready-{rank}").exists() for rank in (0, 1)))
    supervisor.terminate()
    assert supervisor.wait() == 75
    assert (run.path / "saved").exists()
    assert ended(run).state == "paused"


def test_a_script_that_cannot_be_imported_ends_the_run_at_once(tmp_path: Path, start: Start) -> None:
    run = new_run(tmp_path, "import nothere")
    assert start(run).wait() == 2
    assert (ended(run).state, ended(run).code) == ("failed", 2)
    assert ended(run).reason == f"script {tmp_path / 'train.py'} needs the module nothere, which is not installed"
    assert ended(run).remedy
    assert kinds(run) == ["world"]


def test_an_import_that_fails_in_the_middle_of_training_is_a_crash_like_any_other(tmp_path: Path, start: Start) -> None:
    run = new_run(tmp_path, 'print("step 1 loss 2")\nif attempt == 1:\n    import nothere')
    assert start(run, workers=1).wait() == 0
    assert kinds(run) == ["world", "failed", "world"]


def test_the_folder_of_the_script_is_importable_and_the_working_directory_is_that_of_the_launcher(
    tmp_path: Path, start: Start
) -> None:
    (tmp_path / "beside.py").write_text("TEXT = 'imported'")
    run = new_run(tmp_path, "import beside; print(beside.TEXT, sys.path[0] == str(run.parent), os.getcwd())")
    assert start(run, workers=1).wait() == 0
    assert run.log(0).read_text()[25:] == f"imported True {os.getcwd()}\n"


def test_a_token_of_the_environment_that_was_not_declared_is_in_no_log_either(tmp_path: Path, start: Start) -> None:
    script = """
    import base64, urllib.parse
    for name in ("HF_TOKEN", "DB_PASSWORD", "TOKENIZERS_PARALLELISM", "PLAIN"):
        value = os.environ[name]
        print(name, value, urllib.parse.quote(value), base64.b64encode(value.encode()).decode())
    raise SystemExit(f"refused: {os.environ['DB_PASSWORD']}")
    """
    run = new_run(tmp_path, script, max_restarts=0)
    held = {"HF_TOKEN": "hf_" + "x1Y2" * 9, "DB_PASSWORD": "open & sesame!"}
    assert start(run, workers=1, env={**held, "PLAIN": "a plain value"}).wait() == 3
    log = run.log(0).read_text()
    assert "HF_TOKEN *** *** ***" in log
    assert "DB_PASSWORD *** *** ***" in log
    assert "PLAIN a plain value a%20plain%20value" in log
    assert "TOKENIZERS_PARALLELISM false false" in log
    assert ended(run).reason.endswith("refused: ***")
    assert "sesame" not in "".join(path.read_text() for path in run.path.rglob("*") if path.is_file())


def test_secrets_reach_the_workers_and_no_file_of_the_run(tmp_path: Path, start: Start) -> None:
    script = """
    import json
    key = os.environ["KEY"]
    print("the key is", key, "and ends", key[-3:])
    (run / "exit.json").write_text(json.dumps({"state": "failed", "code": 3, "step": 1, "reason": f"bad key {key}"}))
    (run.parent / "out.txt").write_text(key[::-1])
    sys.exit(f"cannot log in with {key}")
    """
    run = new_run(tmp_path, script, secrets={"KEY": "env:KEY"}, max_restarts=0)
    assert start(run, workers=1, env={"KEY": "open-sesame"}).wait() == 3
    assert (tmp_path / "out.txt").read_text() == "emases-nepo"
    assert ended(run).reason == "bad key ***"
    files = [path for path in run.path.rglob("*") if path.is_file()]
    assert run.log(0) in files
    assert "the key is *** and ends ame" in run.log(0).read_text()
    assert not [path for path in [*files, tmp_path / "supervisor.log"] if b"open-sesame" in path.read_bytes()]


def test_a_secret_overrides_a_plain_value_of_the_same_name(tmp_path: Path, start: Start) -> None:
    run = new_run(tmp_path, '(run / "seen").write_text(os.environ["KEY"])', secrets={"KEY": "env:KEY"})
    spec = json.loads(json.dumps(run.any_spec().model_dump())) | {"env": {"KEY": "plain"}}
    run.write_spec(ScriptSpec.model_validate(spec))
    assert start(run, workers=1, env={"KEY": "open-sesame"}).wait() == 0
    assert (run.path / "seen").read_text() == "open-sesame"


def test_a_full_disk_under_the_logs_does_not_end_a_run(tmp_path: Path, start: Start) -> None:
    run = new_run(tmp_path, 'for i in range(100_000): print("x" * 50)')
    run.log(0).symlink_to("/dev/full")
    assert start(run, workers=1).wait() == 0
    (note,) = [event for event in events_of(run) if event["kind"] == "note"]
    assert "rank-0.log cannot be written" in note["text"]


def test_a_remaining_grandchild_does_not_keep_the_run_from_ending(tmp_path: Path, start: Start) -> None:
    script = """
    import subprocess
    print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid)
    """
    run = new_run(tmp_path, script)
    assert start(run, workers=1).wait() == 0
    os.kill(int(run.log(0).read_text()[25:]), signal.SIGKILL)
    assert ended(run).state == "done"
