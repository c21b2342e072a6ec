"""A second lab beside the shared one: it can be killed while it starts, and leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SYSCTLS = ["kernel/panic", "kernel/panic_on_oops", "vm/overcommit_memory", "vm/panic_on_oom", "net/ipv4/ip_forward"]
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnLab:
    number: int

    @property
    def name(self) -> str:
        return f"stoker-lab-{self.number}"

    @property
    def net(self) -> str:
        return f"10.{213 + self.number}."

    def start(self, verb: str, *before: str) -> "subprocess.Popen[str]":
        argv = [*before, sys.executable, "-m", "lab", verb]
        env = os.environ | {"STOKER_LAB": str(self.number)}
        return subprocess.Popen(argv, env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __call__(self, verb: str) -> str:
        out, errors = (process := self.start(verb)).communicate()
        assert process.returncode == 0, errors
        return out

    def traces(self) -> list[str]:
        return [line for line in traces() if self.name in line or self.net in line]

    def hosts(self, name: str) -> list[int]:
        return [pid for pid, line in processes().items() if line.endswith(f" stoker-lab-host {self.name} {name}")]


@pytest.fixture
def own_lab(request: pytest.FixtureRequest) -> Iterator[OwnLab]:
    """The lab with this number. Each test has its own, because they may run at the same time."""
    own = OwnLab(number=request.param)
    yield own
    own("down")


@pytest.mark.soak
@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize("own_lab", [7], indirect=True)
def test_a_killed_lab_starts_again_and_a_stopped_lab_leaves_nothing(own_lab: OwnLab) -> None:
    before = traces()
    assert not own_lab.traces()
    with own_lab.start("up") as killed:
        while not own_lab.hosts("node-2"):
            time.sleep(0.01)
            assert killed.poll() is None
        killed.kill()

    own_lab("up")
    assert len(re.findall(r"^node-\d +Ready ", own_lab("status"), re.MULTILINE)) == 2
    assert own_lab.traces()

    own_lab("down")
    assert not own_lab.traces()
    assert sysctls(traces()) == sysctls(before)


@pytest.mark.soak
@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize("own_lab", [8], indirect=True)
def test_a_lab_that_does_not_start_leaves_its_logs_and_nothing_else(own_lab: OwnLab) -> None:
    with own_lab.start("up") as starting:
        while not own_lab.hosts("node-2"):
            time.sleep(0.01)
            assert starting.poll() is None
        for pid in own_lab.hosts("control"):
            os.kill(pid, signal.SIGKILL)
        _, errors = starting.communicate()
    assert starting.returncode == 1
    assert errors.splitlines()[-1].startswith("lab: ")
    assert "Traceback" not in errors
    assert own_lab.traces() == [f"/var/tmp/{own_lab.name}"]
    assert list(Path("/var/tmp", own_lab.name, "logs").iterdir())


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize("own_lab", [9], indirect=True)
def test_a_conflicting_route_is_reported_before_anything_starts(own_lab: OwnLab) -> None:
    with_route = ["unshare", "--net", "sh", "-c", f'ip route add unreachable {own_lab.net}0.0/16 && exec "$@"', "sh"]
    with own_lab.start("up", *with_route) as starting:
        _, errors = starting.communicate()
    assert starting.returncode == 2
    assert f"lab: this machine has a route to {own_lab.net}0.0/16" in errors
    assert not own_lab.traces()


def traces() -> list[str]:
    """Everything on this machine that a lab could leave behind, one line each."""
    commands = [["ip", "-oneline", "address"], ["ip", "-oneline", "link"], ["ip", "route", "show", "table", "all"]]
    commands += [["iptables-save"], ["ip", "rule"]]
    lines = [line for argv in commands for line in subprocess.check_output(argv, text=True).splitlines()]
    lines += Path("/proc/self/mountinfo").read_text().splitlines()
    groups = [Path(folder, name) for folder, names, _ in os.walk("/sys/fs/cgroup") for name in names]
    lines += [str(path) for path in groups if path.name.startswith("stoker-lab")]
    lines += [str(path) for path in Path("/var/tmp").iterdir() if path.is_dir()]
    lines += [f"{name} = {Path('/proc/sys', name).read_text().strip()}" for name in SYSCTLS]
    return lines + [line for line in processes().values() if "pytest" not in line]


def processes() -> dict[int, str]:
    command_lines = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                command_lines[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ").strip()
            except OSError:
                continue
    return command_lines


def sysctls(lines: list[str]) -> list[str]:
    return [line for line in lines if " = " in line and line.split(" = ")[0] in SYSCTLS]
