import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stoker.observe.chips import Gpu
from stoker.observe.top import Top, read_gpus
from stoker.rundir import RunDir
from stoker.spec import contract
from stoker.spec.errors import UserError

BUSY = "import subprocess, sys, threading\n" + (
    "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    "child = subprocess.Popen([sys.executable, '-c', 'while True: pass'])\n"
    "print('up', flush=True)\n"
    "child.wait()\n"
)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


def test_a_worker_is_counted_with_all_that_it_has_started(run: RunDir) -> None:
    idle = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "RANK": "1"},
    )
    busy = subprocess.Popen(
        [sys.executable, "-c", BUSY], stdout=subprocess.PIPE, env={**os.environ, "RANK": "0"}, start_new_session=True
    )
    other = subprocess.Popen(["sleep", "60"])
    try:
        busy.stdout.readline()
        idle.stdout.readline()
        with run.lock():  # this process is their supervisor
            top = Top(run)
            time.sleep(0.5)
            used = top.look()
        assert [(one.rank, one.pid) for one in used] == [(0, busy.pid), (1, idle.pid)]
        assert used[0].threads == 3
        assert used[0].cpu > used[1].cpu == 0
        assert used[0].memory > used[1].memory > 2**20
    finally:
        os.killpg(busy.pid, 9)
        for process in (idle, busy, other):
            process.kill()
            process.wait()


def test_in_a_pod_whoever_has_a_rank_of_the_run_is_a_worker(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run may be held by another pod's supervisor; what a worker has started has its rank too."""
    monkeypatch.setenv(contract.ENV_POD, "books-1")
    own = {**os.environ, "RANK": "3", contract.ENV_RUN_DIR: str(run.path)}
    worker = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, env=own, start_new_session=True)
    other = subprocess.Popen(["sleep", "60"], env=own | {contract.ENV_RUN_DIR: "/elsewhere"})
    try:
        worker.stdout.readline()
        top = Top(run)
        time.sleep(0.5)
        (used,) = top.look()
        assert (used.rank, used.pid, used.threads) == (3, worker.pid, 3)
    finally:
        os.killpg(worker.pid, 9)
        for process in (worker, other):
            process.kill()
            process.wait()


def test_a_run_that_nobody_holds_has_no_workers(run: RunDir) -> None:
    assert Top(run).look() == []


def test_a_run_on_another_machine_is_named_with_it(run: RunDir) -> None:
    with run.lock():
        lock = run.path / contract.LOCK_FILE
        lock.write_text(json.dumps(json.loads(lock.read_text()) | {"host": f"not-{socket.gethostname()}"}))
        with pytest.raises(UserError, match=r"runs on not-.*, not here\. Run there: stoker top"):
            Top(run)


def test_the_words_of_nvidia_smi_are_read() -> None:
    lines = ("0, GPU-3c0b7d11, 37 %, 1024 MiB, 143771 MiB", "1, GPU-99, [N/A], [N/A], 40960 MiB")
    assert read_gpus(lines) == [
        Gpu(index="0", uuid="GPU-3c0b7d11", use=37.0, memory=2**30, memory_total=143771 * 2**20),
        Gpu(index="1", uuid="GPU-99", use=None, memory=None, memory_total=40960 * 2**20),
    ]
    assert read_gpus(()) == []
