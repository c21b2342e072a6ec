"""Stoker runs without the system calls and the /proc that only Linux has, as on macOS: tested on Linux without them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.rundir import RunDir
from tests.limited import Ended, Limited
from tests.processes import is_alive
from tests.waiting import until

ROOT = Path(__file__).parents[1]
# psutil and torch have their own builds for macOS; those of this machine may still read /proc.
REMOVE = """
import ctypes, errno, fcntl, os, re, resource, select, signal, socket, sys, sysconfig, time

ONLY_LINUX = {
    os: r"sched_|eventfd|EFD_|pidfd_|memfd_|MFD_|posix_fa|POSIX_FADV|pipe2|splice|SPLICE|copy_file_range|.*xattr|XATTR_"
        r"|O_(TMPFILE|PATH|DIRECT|NOATIME|LARGEFILE|RSYNC)$|getrandom|GRND_|setns|unshare|CLONE_|fdatasync|waitid"
        r"|P_PIDFD|[gs]etres[ug]id|RWF_|preadv|pwritev",
    fcntl: r"F_(SETPIPE|GETPIPE|OFD|ADD_SEALS|GET_SEALS|SEAL|NOTIFY|SETSIG|GETSIG|SETLEASE|GETLEASE)|DN_",
    select: r"epoll|EPOLL|POLLRDHUP",
    signal: r"pidfd_send|sigtimedwait|sigwaitinfo|SIGPWR|SIGSTKFLT|SIGPOLL|SIGRT|SIGCLD",
    socket: r"SOCK_(CLOEXEC|NONBLOCK)|SO_(PEERCRED|PASSCRED|BINDTODEVICE|DOMAIN|PROTOCOL|MARK|PRIORITY)|AF_(ALG|NETLINK"
            r"|VSOCK|TIPC|QIPCRTR|CAN)|TCP_(USER_TIMEOUT|CORK|QUICKACK|DEFER_ACCEPT|KEEPIDLE|SYNCNT|LINGER2|INFO)"
            r"|MSG_(NOSIGNAL|CMSG_CLOEXEC|MORE|CONFIRM|ERRQUEUE)|IP_(TRANSPARENT|RECVTOS|BIND_ADDRESS_NO_PORT)",
    resource: r"prlimit|RUSAGE_THREAD|RLIMIT_(MSGQUEUE|NICE|RTPRIO|RTTIME|SIGPENDING|OFILE)",
    time: r"CLOCK_(BOOTTIME|TAI|MONOTONIC_COARSE)|pthread_getcpuclockid",
}
for module, names in ONLY_LINUX.items():
    for name in [name for name in vars(module) if re.match(names, name)]:
        delattr(module, name)

class CDLL(ctypes.CDLL):
    def __getattr__(self, name):
        if name == "prctl":
            raise AttributeError(name)
        return super().__getattr__(name)

ctypes.CDLL = CDLL
STDLIB, OURS = sysconfig.get_path("stdlib"), @SRC@

def is_ours():
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((STDLIB, "<frozen")) or "site-packages" in file:
            return file.startswith(OURS)
        frame = frame.f_back
    return False

def hook(event, args):
    if event in ("open", "os.listdir", "os.scandir") and str(args[0]).startswith(("/proc", "/sys")) and is_ours():
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(args[0]))

sys.addaudithook(hook)
with open(@LOG@, "a") as log:
    log.write(" ".join(sys.orig_argv).replace("\\n", " ") + "\\n")
"""
SMALL = [
    "model.layers=1", "model.heads=2", "model.width=16", "model.context=16", "batch.sequences=4", "batch.length=16",
    "precision=fp32", "compile=false", "checkpoint.every=2", "eval.sequences=2", "on.workers=2", "on.device=cpu",
]  # fmt: skip
SCRIPT = """
import os, pathlib, time
folder = pathlib.Path(os.environ["STOKER_RUN_DIR"])
(folder / "worker").write_text(str(os.getpid()))
print("the worker is up", flush=True)
while not (folder / "stop").exists():
    time.sleep(0.05)
"""


@pytest.fixture
def mac(tmp_path: Path) -> Limited:
    folder = tmp_path / "limits"
    folder.mkdir()
    code = REMOVE.replace("@SRC@", repr(str(ROOT / "src" / "stoker"))).replace("@LOG@", repr(str(folder / "log")))
    return Limited.by(code, folder)


def stoker(mac: Limited, folder: Path, *words: str) -> Ended:
    argv = [sys.executable, "-m", "stoker", *words]
    done = subprocess.run(argv, cwd=folder, env=mac.environment(), capture_output=True, text=True, timeout=600)
    return Ended(code=done.returncode, out=done.stdout, err=done.stderr)


def test_text_is_prepared_and_the_machine_is_checked(mac: Limited, tmp_path: Path, books: Path) -> None:
    prepare = ["prepare", str(books), "-o", "set", "--tokenizer", "300"]
    plan = ["train", "data=./set", "until.steps=2", *SMALL, "--dry-run"]
    prepared, checked, planned = mac.verbs(prepare, ["check"], plan, cwd=tmp_path)
    assert (prepared.code, prepared.err.count("Traceback")) == (0, 0), prepared
    assert checked.code == 0, checked
    assert "A run can be trained here" in checked.out
    assert planned.code == 0, planned


def test_a_model_is_trained(mac: Limited, tmp_path: Path, tokens: Path) -> None:
    ended = stoker(mac, tmp_path, "train", f"data={tokens}", "name=tale", "until.steps=3", *SMALL)
    assert ended.code == 0, ended
    run = RunDir(tmp_path / "runs" / "tale")
    assert [record["step"] for record in run.metrics()][-1] == 3
    processes = (mac.folder / "log").read_text()
    assert "-m stoker.supervise" in processes  # the limits applied there too
    assert processes.count("-m stoker.train") == 2


def test_a_run_in_the_background_is_watched_and_stopped(mac: Limited, tmp_path: Path) -> None:
    run = launched(mac, tmp_path)
    commands = [[verb, run.name] for verb in ("status", "logs", "top", "events", "why", "env")]
    shown = mac.verbs(["ps", "--json"], *commands, cwd=tmp_path)
    assert [ended.code for ended in shown] == [0] * 7, shown
    assert json.loads(shown[0].out)[0]["state"] == "running"
    assert "the worker is up" in shown[2].out
    assert mac.verbs(["stop", run.name], cwd=tmp_path)[0].code == 0
    until(lambda: run.holder() is None)


def test_no_worker_outlives_a_supervisor_that_is_killed(mac: Limited, tmp_path: Path) -> None:
    run = launched(mac, tmp_path)
    holder, worker = run.holder(), int((run.path / "worker").read_text())
    assert holder is not None
    assert is_alive(worker)
    os.kill(holder["pid"], signal.SIGKILL)
    until(lambda: not is_alive(worker))


def launched(mac: Limited, folder: Path) -> RunDir:
    """A script that runs in the background until it is stopped."""
    (folder / "work.py").write_text(SCRIPT)
    (folder / "work.yaml").write_text("name: work\nscript: work.py\non: {workers: 1, device: cpu, max_restarts: 0}\n")
    (ended,) = mac.verbs(["launch", "work.yaml", "--json"], cwd=folder)
    assert ended.code == 0, ended
    run = RunDir(Path(json.loads(ended.out)["folder"]))
    until(lambda: (run.path / "worker").exists() and (run.path / "worker").read_text() != "")
    return run
