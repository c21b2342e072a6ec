import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stoker.backends.local.backend import Local
from stoker.rundir import DataRef, RunDir
from stoker.spec import contract
from stoker.spec.data import Data
from stoker.spec.errors import UserError
from stoker.spec.run import RunSpec, Until

SLEEPER = "import pathlib, os, time; pathlib.Path(os.environ['STOKER_RUN_DIR'], 'up').touch(); time.sleep(60)"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "tale")
    run.create(RunSpec(data=Data(path="x"), until=Until(steps=1)), DataRef(shards="/nowhere", key="k"))
    return run


def test_stopping_a_run_that_does_not_run_is_no_error(run: RunDir) -> None:
    assert Local().stop(run) is False
    assert Local().stop(run) is False


def test_stop_ends_the_supervisor_that_holds_the_run(run: RunDir) -> None:
    argv = [
        sys.executable,
        "-m",
        "stoker.supervise",
        str(run.path),
        "--workers",
        "1",
        "--",
        sys.executable,
        "-c",
        SLEEPER,
    ]
    supervisor = subprocess.Popen(argv)
    while not (run.path / "up").exists():
        assert supervisor.poll() is None
        time.sleep(0.02)
    assert Local().stop(run) is True
    assert supervisor.wait() == contract.EXIT_SAVED
    assert Local().stop(run) is False


def test_stop_never_signals_a_process_that_is_not_a_supervisor(run: RunDir) -> None:
    with run.lock(), pytest.raises(UserError, match=f"held by process {os.getpid()}, which is not a supervisor"):
        Local().stop(run)


def test_a_run_whose_holder_is_not_written_yet_cannot_be_stopped_yet(run: RunDir) -> None:
    with run.lock():
        (run.path / contract.LOCK_FILE).write_text("")
        with pytest.raises(UserError, match=r"is just starting\. Wait a moment and try again"):
            Local().stop(run)


def test_stop_names_the_host_that_the_run_is_on(run: RunDir) -> None:
    with run.lock():
        lock = run.path / contract.LOCK_FILE
        lock.write_text(lock.read_text().replace(socket.gethostname(), "elsewhere"))
        with pytest.raises(UserError, match="runs on elsewhere, not on this machine"):
            Local().stop(run)
