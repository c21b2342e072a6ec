"""A host ends with all that runs on it."""

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


def test_a_host_is_gone_only_when_all_that_ran_on_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., None]
) -> None:
    monkeypatch.setattr(host, "NAME", f"stoker-test-{uuid.uuid4().hex[:8]}")
    (tmp_path / host.MARK).write_text("sleep 1000 & wait\n")
    apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    first = subprocess.Popen([*apart, "sh", host.MARK, host.NAME, "box"], cwd=tmp_path)
    eventually(host.alive, every_s=0.05)
    box = host.alive()["box"]
    space = os.stat(f"/proc/{box.pid}/ns/pid").st_ino
    visitor = subprocess.Popen(["nsenter", f"--target={box.pid}", "--pid", "--", "sleep", "1000"])
    eventually(lambda: len(inside(space)) == 3, every_s=0.05)
    visitor.send_signal(signal.SIGSTOP)  # it will not take note of its child's death: as one that is slow to die
    killing = threading.Thread(target=host.kill)
    killing.start()
    eventually(lambda: not host.alive(), every_s=0.05)
    killing.join(0.3)
    assert killing.is_alive()
    assert inside(space)
    visitor.send_signal(signal.SIGCONT)
    killing.join(60)
    assert not killing.is_alive()
    assert not inside(space)
    visitor.wait()
    first.wait()


def inside(space: int) -> list[int]:
    """What runs in a namespace of processes, or is dead there and not yet forgotten."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(folder / "ns/pid").st_ino == space:
                    found.append(int(folder.name))
    return found
