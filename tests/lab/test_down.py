"""A lab of its own, beside the one that all share: it survives a kill in the middle, and leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

NAME, NET = "stoker-lab-7", "10.220."
ENV = os.environ | {"STOKER_LAB": "7"}
KNOBS = ["kernel/panic", "kernel/panic_on_oops", "vm/overcommit_memory", "vm/panic_on_oom", "net/ipv4/ip_forward"]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def own_lab() -> Iterator[list[str]]:
    argv = [sys.executable, "-m", "lab"]
    yield argv
    subprocess.run([*argv, "down"], env=ENV, cwd=ROOT, check=True)


@pytest.mark.soak
@pytest.mark.usefixtures("lab")
def test_a_killed_lab_starts_over_and_a_lab_that_is_down_leaves_nothing(own_lab: list[str]) -> None:
    before = traces()
    assert not [line for line in before if NAME in line or NET in line]
    killed = subprocess.Popen([*own_lab, "up"], env=ENV, cwd=ROOT)
    while not any(NAME in line and "node-2" in line for line in processes()):
        time.sleep(0.01)
        assert killed.poll() is None
    killed.send_signal(signal.SIGKILL)
    killed.wait()

    subprocess.run([*own_lab, "up"], env=ENV, cwd=ROOT, check=True)
    status = subprocess.run([*own_lab, "status"], env=ENV, cwd=ROOT, check=True, capture_output=True, text=True)
    assert len(re.findall(r"^node-\d +Ready ", status.stdout, re.MULTILINE)) == 2
    assert [line for line in traces() if NAME in line or NET in line]

    subprocess.run([*own_lab, "down"], env=ENV, cwd=ROOT, check=True)
    assert [line for line in traces() if NAME in line or NET in line] == []
    assert knobs(traces()) == knobs(before)


def traces() -> list[str]:
    """Everything on this machine that a lab could leave: a line each."""
    asked = [["ip", "-oneline", "address"], ["ip", "-oneline", "link"], ["ip", "route", "show", "table", "all"]]
    asked += [["iptables-save"], ["ip", "rule"]]
    found = [line for argv in asked for line in subprocess.check_output(argv, text=True).splitlines()]
    found += Path("/proc/self/mountinfo").read_text().splitlines()
    found += [str(path) for path in Path("/sys/fs/cgroup").glob("**/stoker-lab*")]
    found += [str(path) for path in Path("/var/tmp").iterdir() if path.is_dir()]
    found += [f"{name} = {Path('/proc/sys', name).read_text().strip()}" for name in KNOBS]
    return found + processes()


def processes() -> list[str]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                found.append((folder / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
    return [line for line in found if "pytest" not in line]


def knobs(lines: list[str]) -> list[str]:
    return [line for line in lines if " = " in line and line.split(" = ")[0] in KNOBS]
