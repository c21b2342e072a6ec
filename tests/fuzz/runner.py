"""Runs a hostile case in its own process, watches it, and judges the outcome."""

import ctypes
import hashlib
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.hostile import ESCAPE
from tests.processes import descendants

SECONDS = 10
MEMORY = 1 << 30
MARKER = "EXECUTED"
PR_SET_CHILD_SUBREAPER = 36
CRASHES = ("Traceback (most recent call last)", "panicked at", "Fatal Python error", "terminate called")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A command, or a function, to be run in `folder`/work."""

    kind: str
    number: int
    folder: Path
    description: str
    """For the report."""
    argv: list[str] = field(default_factory=list)
    call: Callable[[], int] | None = None
    """Called in the fork. None: the fork calls `stoker` with argv."""
    fresh: Callable[[], subprocess.Popen[bytes]] | None = None
    """Starts a new process instead of a fork, for cases about how a process starts."""
    environment: Mapping[str, str] = field(default_factory=dict)
    terminal: bool = False


@dataclass(frozen=True, kw_only=True)
class Outcome:
    case: Case
    code: int
    output: str
    seconds: float
    cpu: float
    mebibytes: int
    verdict: str
    """`clean`, or what is wrong."""


def adopt_orphans() -> None:
    """Become the parent of processes that a case leaves running, so that they are found."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run(case: Case) -> Outcome:
    before = snapshot(case.folder / "outside")
    began, cpu_before = time.monotonic(), _cpu_of_children()
    base = 0 if case.fresh else _memory(os.getpid())
    reader, writer = pty.openpty() if case.terminal else os.pipe()
    if case.fresh:
        process = case.fresh()
        pid = process.pid
        os.close(writer)
    else:
        process, pid = None, _fork(case, reader, writer)
    output, peak, ended = _watch(pid, reader, base=base, began=began)
    seconds, cpu = time.monotonic() - began, _cpu_of_children() - cpu_before
    if process is not None:
        process.returncode = ended.code
        if process.stdout:
            output += process.stdout.read()
    remaining = _kill_remaining()
    text = output.decode(errors="replace")
    verdict = ended.problem or ("hang" if cpu > SECONDS else _verdict(case, ended.code, text))
    if (case.folder / "work" / MARKER).exists() or (case.folder / "outside" / MARKER).exists():
        verdict = "executed"
    elif verdict == "clean" and remaining:
        verdict = f"left running: {', '.join(remaining)}"
    elif verdict == "clean" and snapshot(case.folder / "outside") != before:
        verdict = "changed files outside"
    return Outcome(
        case=case, code=ended.code, output=text, seconds=seconds, cpu=cpu, mebibytes=peak >> 20, verdict=verdict
    )


@dataclass(frozen=True, kw_only=True)
class _End:
    code: int
    problem: str = ""


def _fork(case: Case, reader: int, writer: int) -> int:
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid
    code = 1
    try:
        os.setsid()
        os.close(reader)
        quiet = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((quiet, 0), (writer, 1), (writer, 2)):
            os.dup2(source, target)
        os.close(writer)
        os.environ.update(case.environment)
        os.chdir(case.folder / "work")
        code = _call(case)
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _call(case: Case) -> int:
    from stoker.cli.main import main  # noqa: PLC0415 (the parent has loaded it already)

    return case.call() if case.call else main(case.argv)


def _watch(pid: int, reader: int, *, base: int, began: float) -> tuple[bytes, int, _End]:
    """Read the output until the process ends. Kill it when it takes too long, not counting time waiting for a core."""
    output, peak = bytearray(), 0
    queued: dict[int, float] = {}
    while True:
        if select.select([reader], [], [], 0.005)[0]:
            data = _read(reader)
            output += data
            if not data:  # closed, and always readable from now on
                time.sleep(0.005)
        others = descendants(pid)
        peak = max(peak, _memory(pid) - base, *map(_memory, others))
        queued |= {each: max(queued.get(each, 0.0), _queued(each)) for each in (pid, *others)}
        done, status = os.waitpid(pid, os.WNOHANG)
        problem = ""
        if not done and peak > MEMORY:
            problem = f"took {peak >> 20} MiB"
        if not done and time.monotonic() - began - sum(queued.values()) > SECONDS:
            problem = "hang"
        if problem:
            os.killpg(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
        if done or problem:
            output += _rest(reader)
            os.close(reader)
            return bytes(output), peak, _End(code=os.waitstatus_to_exitcode(status), problem=problem)


def _rest(reader: int) -> bytes:
    rest = bytearray()
    while select.select([reader], [], [], 0)[0] and (data := _read(reader)):
        rest += data
    return bytes(rest)


def _read(reader: int) -> bytes:
    """Empty when the other side is closed."""
    try:
        return os.read(reader, 65536)
    except OSError:  # of a terminal
        return b""


def _queued(pid: int) -> float:
    """Seconds that a process was ready to run, and other processes had the cores."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _verdict(case: Case, code: int, text: str) -> str:
    if any(crash in text for crash in CRASHES):
        return "traceback"
    if code < 0:
        return f"died of {signal.Signals(-code).name}"
    if code not in (0, 1, 2, 3):
        return f"exit code {code}"
    if case.terminal and ESCAPE in text:
        return "escape sequence on the terminal"
    if "hunter2" in text and "hunter2" not in " ".join(case.argv):
        return "printed a password"
    if code and not case.fresh and not text.strip():
        return "failed without a message"
    return "clean"


def snapshot(folder: Path) -> dict[str, str]:
    """A description of each file: mode, size, time and content."""
    files = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        files[str(path.relative_to(folder))] = f"{status.st_mode} {status.st_size} {status.st_mtime_ns} {content}"
    return files


def _memory(pid: int) -> int:
    """The memory of a process in bytes, without mapped files: how much of torch's libraries is resident depends on
    the page cache."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


def _cpu_of_children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _kill_remaining() -> list[str]:
    """Kill processes that outlive the command by two seconds, and return the first."""
    deadline = time.monotonic() + 2
    while children := Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        for child in children:
            done, _ = os.waitpid(int(child), os.WNOHANG)
            if not done and time.monotonic() > deadline:
                name = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:80]
                os.kill(int(child), signal.SIGKILL)
                os.waitpid(int(child), 0)
                return [name]
        time.sleep(0.01)
    return []


def clear(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
