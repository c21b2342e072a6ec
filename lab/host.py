"""A host of the lab: a set of network, mount and PID namespaces. It ends with its first process."""

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
PRIVATE_FOLDERS = ["/run", "/var/lib", "/var/log"]  # a node keeps files with fixed names here
SYSCTLS = ["vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"]
SYSCTLS += [
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
]  # kubelet sets them, and they apply to the whole machine: each host gets dummy files
TIMEOUT_S = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    name: str
    pid: int
    """Its first process, in the PID namespace of this machine."""

    def argv(self, *command: str) -> list[str]:
        return ["nsenter", f"--target={self.pid}", "--mount", "--net", "--pid", "--", *command]

    def run(self, *command: str) -> str:
        done = subprocess.run(self.argv(*command), capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise RuntimeError(f"{self.name}: {' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def start(self, name: str, *command: str, high_priority: bool = True) -> subprocess.Popen[bytes]:
        """Start a server that outlives this process. Its log is LOGS/HOST.NAME.log.

        Servers have a higher priority because training pods use all CPUs. containerd does not, because its containers
        would inherit the priority.
        """
        LOGS.mkdir(parents=True, exist_ok=True)
        with open(LOGS / f"{self.name}.{name}.log", "ab") as log:
            return subprocess.Popen(
                self.argv(*(["nice", "-n", "-5"] if high_priority else []), *command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",
                env={"PATH": PATH, "HOME": "/root"},
            )


def boot(name: str, pause: Path) -> Host:
    """Start a host with private copies of PRIVATE_FOLDERS. It sees the other files of this machine."""
    unshare = [
        "unshare",
        "--mount",
        "--net",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "--propagation=private",
    ]
    LOGS.mkdir(parents=True, exist_ok=True)
    with open(LOGS / f"{name}.log", "ab") as log:
        process = subprocess.Popen(
            [*unshare, str(pause), MARK, NAME, name],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
        )
    host = Host(name=name, pid=_child(process))
    for path in PRIVATE_FOLDERS:
        private = STATE / name / path.strip("/")
        private.mkdir(parents=True, exist_ok=True)
        host.run("mount", "--bind", str(private), path)
    host.run("mount", "--bind", str(VOLUMES), str(PROVISIONED))
    for sysctl in SYSCTLS:
        dummy = STATE / name / "sysctls" / sysctl
        dummy.parent.mkdir(parents=True, exist_ok=True)
        dummy.write_text(Path("/proc/sys", sysctl).read_text())
        host.run("mount", "--bind", str(dummy), f"/proc/sys/{sysctl}")
    return host


def alive() -> dict[str, Host]:
    """The running hosts of this lab, from any process."""
    return {host.name: host for lab, host in _all() if lab == NAME}


def none() -> bool:
    """Whether no host of any lab runs on this machine."""
    return not _all()


def kill() -> None:
    """Kill every host of this lab with all its processes."""
    while hosts := alive():
        for host in hosts.values():
            with contextlib.suppress(ProcessLookupError):
                _kill(host)


def wait_for(ready: Callable[[], bool], name: str) -> None:
    """Wait until a server is ready; on a busy machine this can take minutes."""
    deadline = time.monotonic() + TIMEOUT_S
    while not ready():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{name} does not respond: see {LOGS}")
        time.sleep(0.05)


def processes(hosts: dict[str, Host]) -> list[int]:
    """The processes on the hosts, as PIDs of this machine."""
    namespaces = {os.readlink(f"/proc/{host.pid}/ns/pid") for host in hosts.values()}
    pids = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if os.readlink(folder / "ns/pid") in namespaces:
                    pids.append(int(folder.name))
    return pids


def _all() -> list[tuple[str, Host]]:
    hosts = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            argv = _argv(folder)
            if len(argv) == 4 and argv[1] == MARK:
                hosts.append((argv[2], Host(name=argv[3], pid=int(folder.name))))
    return hosts


def _kill(host: Host) -> None:
    """Kill the first process. The kernel ends it after all other processes of the host."""
    handle = os.pidfd_open(host.pid)
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        if not poll.poll(TIMEOUT_S * 1000):
            raise RuntimeError(f"{host.name} cannot be killed")
    finally:
        os.close(handle)


def _child(process: subprocess.Popen[bytes]) -> int:
    """Wait until unshare has started the first process in the new namespaces, and return its PID."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        if children and MARK in _argv(Path(f"/proc/{children[0]}"))[1:2]:
            return int(children[0])
        time.sleep(0.005)
    raise RuntimeError("cannot create namespaces on this machine")


def _argv(folder: Path) -> list[str]:
    try:
        return (folder / "cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []
