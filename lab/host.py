"""A machine of the lab: network, mounts and processes of its own on this kernel. All goes with its first process."""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lab.places import LOGS, NAME, PROVISIONED, STATE, VOLUMES

MARK = "stoker-lab-host"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OWN = ["/run", "/var/lib", "/var/log"]  # folders in which a node keeps its things under fixed names
KNOBS = ["vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"]
KNOBS += [
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
]  # kubelet sets them, and they are the whole machine's
PATIENCE_S = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    name: str
    pid: int
    """Its first process, as this machine counts."""

    def argv(self, *words: str) -> list[str]:
        return ["nsenter", f"--target={self.pid}", "--mount", "--net", "--pid", "--", *words]

    def run(self, *words: str) -> str:
        done = subprocess.run(self.argv(*words), capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise RuntimeError(f"{self.name}: {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def start(self, name: str, *words: str, first: bool = True) -> subprocess.Popen[bytes]:
        """A server that outlives this command. Its log is LOGS/HOST.NAME.log.

        Servers go first when the processor is short, as training pods take all of it; containerd does not, since its
        containers would inherit that.
        """
        LOGS.mkdir(parents=True, exist_ok=True)
        with open(LOGS / f"{self.name}.{name}.log", "ab") as log:
            return subprocess.Popen(
                self.argv(*(["nice", "-n", "-5"] if first else []), *words),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",
                env={"PATH": PATH, "HOME": "/root"},
            )


def boot(name: str, pause: Path) -> Host:
    """A new host. It has folders of its own where programs insist on fixed names, and sees the rest of this machine."""
    apart = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation=private"]
    LOGS.mkdir(parents=True, exist_ok=True)
    with open(LOGS / f"{name}.log", "ab") as log:
        process = subprocess.Popen(
            [*apart, str(pause), MARK, NAME, name],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
        )
    host = Host(name=name, pid=_child(process))
    for path in OWN:
        mine = STATE / name / path.strip("/")
        mine.mkdir(parents=True, exist_ok=True)
        host.run("mount", "--bind", str(mine), path)
    host.run("mount", "--bind", str(VOLUMES), str(PROVISIONED))
    for knob in KNOBS:
        false = STATE / name / "knobs" / knob
        false.parent.mkdir(parents=True, exist_ok=True)
        false.write_text(Path("/proc/sys", knob).read_text())
        host.run("mount", "--bind", str(false), f"/proc/sys/{knob}")
    return host


def alive() -> dict[str, Host]:
    """The hosts that run now, whoever started them."""
    return {one.name: one for lab, one in _all() if lab == NAME}


def none() -> bool:
    """Whether no host of any lab runs on this machine."""
    return not _all()


def kill() -> None:
    """Every host and all that runs on them."""
    while hosts := alive():
        for host in hosts.values():
            with contextlib.suppress(ProcessLookupError):
                _kill(host)


def wait_for(what: Callable[[], bool], name: str) -> None:
    """A server takes its time to come, on a busy machine minutes."""
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{name} does not answer: see {LOGS}")
        time.sleep(0.05)


def processes(hosts: dict[str, Host]) -> list[int]:
    """What runs on the hosts, as this machine counts."""
    spaces = {os.readlink(f"/proc/{host.pid}/ns/pid") for host in hosts.values()}
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if os.readlink(folder / "ns/pid") in spaces:
                    found.append(int(folder.name))
    return found


def _all() -> list[tuple[str, Host]]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            words = _words(folder)
            if len(words) == 4 and words[1] == MARK:
                found.append((words[2], Host(name=words[3], pid=int(folder.name))))
    return found


def _kill(host: Host) -> None:
    """The kernel ends a first process after all others of its host: with it, nothing is left."""
    handle = os.pidfd_open(host.pid)
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        gone = select.poll()
        gone.register(handle, select.POLLIN)
        if not gone.poll(PATIENCE_S * 1000):
            raise RuntimeError(f"{host.name} will not die")
    finally:
        os.close(handle)


def _child(process: subprocess.Popen[bytes]) -> int:
    """unshare makes the namespaces, then starts the first process in them."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        if children and MARK in _words(Path(f"/proc/{children[0]}"))[1:2]:
            return int(children[0])
        time.sleep(0.005)
    raise RuntimeError("this machine gives no namespaces")


def _words(folder: Path) -> list[str]:
    try:
        return (folder / "cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []
