"""A host ends with all its processes."""

import contextlib
import os
import signal
import subprocess
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import host

pytestmark = pytest.mark.usefixtures("able")


def test_kill_returns_when_every_process_of_the_host_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., None]
) -> None:
    monkeypatch.setattr(host, "NAME", f"stoker-test-{uuid.uuid4().hex[:8]}")
    (tmp_path / host.MARK).write_text("sleep 1000 & wait\n")
    unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    first = subprocess.Popen([*unshare, "sh", host.MARK, host.NAME, "box"], cwd=tmp_path)
    eventually(host.alive, every_s=0.05)
    box = host.alive()["box"]
    namespace = os.stat(f"/proc/{box.pid}/ns/pid").st_ino
    visitor = subprocess.Popen(["nsenter", f"--target={box.pid}", "--pid", "--", "sleep", "1000"])
    eventually(lambda: len(processes_in(namespace)) == 3, every_s=0.05)
    visitor.send_signal(signal.SIGSTOP)  # it does not reap its child, as a process that ends slowly
    killing = threading.Thread(target=host.kill)
    killing.start()
    eventually(lambda: not host.alive(), every_s=0.05)
    killing.join(0.3)
    assert killing.is_alive()
    assert processes_in(namespace)
    visitor.send_signal(signal.SIGCONT)
    killing.join(60)
    assert not killing.is_alive()
    assert not processes_in(namespace)
    visitor.wait()
    first.wait()


def processes_in(namespace: int) -> list[int]:
    """The processes of a PID namespace, including zombies."""
    pids = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(folder / "ns/pid").st_ino == namespace:
                    pids.append(int(folder.name))
    return pids
