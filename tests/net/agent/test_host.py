"""What an agent reports about its host."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stoker.net.agent import host
from stoker.spec import contract

WORKER = """\
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""
CHILD = "held = open(r'{device}'); print('up', flush=True); import time; time.sleep(60)"


def test_a_worker_is_counted_once_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = tmp_path / "infiniband" / "uverbs0"
    device.parent.mkdir()
    device.touch()
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "stat").symlink_to("/proc/stat")
    monkeypatch.setattr(host, "PROC", proc)
    own = {**os.environ, "RANK": "0", contract.ENV_RUN_DIR: str(tmp_path)}
    argv = [sys.executable, "-c", WORKER, CHILD.format(device=device)]
    worker = subprocess.Popen(argv, stdout=subprocess.PIPE, env=own, text=True, start_new_session=True)
    try:
        child = worker.stdout.readline().strip()
        for pid in (str(worker.pid), child, str(os.getpid())):
            (proc / pid).symlink_to(f"/proc/{pid}")
        metrics = tmp_path / contract.METRICS_FILE
        assert host.workers() == {"running": 1, "rdma": 1, "stepped": 0}
        metrics.touch()
        os.utime(metrics, (0, time.time() - 3600))  # of an earlier attempt
        assert host.workers()["stepped"] == 0
        os.utime(metrics, (0, time.time() + 60))
        assert host.workers()["stepped"] == 1
    finally:
        os.killpg(worker.pid, 9)
        worker.wait()
