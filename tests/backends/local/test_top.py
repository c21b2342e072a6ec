import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stoker.backends.local.accelerator import Accelerator
from stoker.backends.local.top import Top, gpu_of
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


def test_a_worker_counts_with_its_child_processes(run: RunDir) -> None:
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
            used = top.read()
        assert [(use.rank, use.pid) for use in used] == [(0, busy.pid), (1, idle.pid)]
        assert used[0].threads == 3
        assert used[0].cpu > used[1].cpu == 0
        assert used[0].memory > used[1].memory > 2**20
    finally:
        os.killpg(busy.pid, 9)
        for process in (idle, busy, other):
            process.kill()
            process.wait()


def test_in_a_pod_every_process_with_a_rank_of_the_run_is_a_worker(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor may be in another pod; child processes of a worker have its rank too."""
    monkeypatch.setenv(contract.ENV_POD, "books-1")
    own = {**os.environ, "RANK": "3", contract.ENV_RUN_DIR: str(run.path)}
    worker = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, env=own, start_new_session=True)
    other = subprocess.Popen(["sleep", "60"], env=own | {contract.ENV_RUN_DIR: "/elsewhere"})
    try:
        worker.stdout.readline()
        top = Top(run)
        time.sleep(0.5)
        (used,) = top.read()
        assert (used.rank, used.pid, used.threads) == (3, worker.pid, 3)
    finally:
        os.killpg(worker.pid, 9)
        for process in (worker, other):
            process.kill()
            process.wait()


def test_a_run_without_a_supervisor_has_no_workers(run: RunDir) -> None:
    assert Top(run).read() == []


def test_a_run_on_another_machine_is_reported_with_its_host(run: RunDir) -> None:
    with run.lock():
        lock = run.path / contract.LOCK_FILE
        lock.write_text(json.dumps(json.loads(lock.read_text()) | {"host": f"not-{socket.gethostname()}"}))
        with pytest.raises(UserError, match=r"runs on not-.*, not on this machine\. Run there: stoker top"):
            Top(run)


GPUS = [
    Accelerator(index=str(index), uuid=f"GPU-{index}a", use=None, memory=None, memory_total=None) for index in range(3)
]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"RANK": "1"}, "1"),
        ({"RANK": "9", "LOCAL_RANK": "2"}, "2"),
        ({"RANK": "0", "CUDA_VISIBLE_DEVICES": "2,0"}, "2"),
        ({"RANK": "1", "CUDA_VISIBLE_DEVICES": "GPU-2a, GPU-0a"}, "0"),
        ({"RANK": "3"}, None),
    ],
)
def test_a_worker_computes_on_the_visible_gpu_of_its_local_rank(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str | None
) -> None:
    monkeypatch.setattr("stoker.backends.local.top._open_devices", lambda _: ["/dev/nvidiactl", "/dev/nvidia0"])
    gpu = gpu_of(os.getpid(), environment, GPUS)
    assert (gpu.index if gpu else None) == expected


def test_a_process_that_has_opened_no_gpu_computes_on_none() -> None:
    assert gpu_of(os.getpid(), {"RANK": "0"}, GPUS) is None
