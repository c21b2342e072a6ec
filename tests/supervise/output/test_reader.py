"""Real processes print into a real pipe, and the test reads the log."""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from stoker.supervise.output.log_file import LogFile
from stoker.supervise.output.reader import MAX_LINE_BYTES, OutputReader
from stoker.supervise.output.redact import Redactor
from stoker.supervise.workers.exit import worker_exit
from tests.waiting import until

STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ")
HEAD = """
import os, signal, subprocess, sys, time
def say(text, end="\\n"): os.write(1, (text + end).encode())
def die(): os.kill(os.getpid(), signal.SIGKILL)
"""


class Worker:
    """A process, and the reader of its output."""

    def __init__(self, folder: Path, code: str, *, secrets: tuple[str, ...] = ()) -> None:
        self.log = folder / "rank-0.log"
        self.notes: list[str] = []
        self.printed: list[bytes] = []
        self.reader = OutputReader(LogFile(self.log, note=self.notes.append), Redactor(secrets), self.printed.append)
        argv = [sys.executable, "-c", HEAD + dedent(code)]
        self.process = subprocess.Popen(argv, stdout=self.reader.write_end, stderr=subprocess.STDOUT, cwd=folder)
        self.reader.start()

    def end(self) -> list[str]:
        """The lines of its log, unstamped, once it has ended."""
        self.process.wait()
        self.reader.close()
        return self.lines()

    def lines(self) -> list[str]:
        if not self.log.exists():
            return []
        lines = self.log.read_text().split("\n")
        assert lines.pop() == "", "the log ends with a whole line"
        assert all(STAMP.match(line) for line in lines)
        return [line[25:] for line in lines]


def test_every_line_of_both_streams_is_stamped_and_in_order(tmp_path: Path) -> None:
    code = """
    for i in range(3): say(f"out {i}"); os.write(2, f"err {i}\\n".encode())
    say(""); say("the end", end="")
    """
    worker = Worker(tmp_path, code)
    assert worker.end() == ["out 0", "err 0", "out 1", "err 1", "out 2", "err 2", "", "the end"]
    assert b"".join(worker.printed).decode().split("\n")[-2] == "the end"
    assert worker.reader.tail.endswith("the end\n")


def test_nothing_that_was_printed_before_a_kill_is_lost(tmp_path: Path) -> None:
    code = """
    say("x" * 99 + "\\n" * 1, end="")
    for i in range(9_000): say(f"line {i} " + "y" * 90)
    say("last words", end=""); die()
    """
    lines = Worker(tmp_path, code).end()
    assert len(lines) == 9_002
    assert lines[-2].startswith("line 8999 ")
    assert lines[-1] == "last words"


@pytest.mark.parametrize("megabytes", [20, pytest.param(200, marks=pytest.mark.soak)])
def test_a_lot_of_output_arrives_whole(tmp_path: Path, megabytes: int) -> None:
    count = megabytes * 10_000
    code = f"block = ('z' * 99 + chr(10)).encode() * 1000\nfor i in range({count // 1000}): os.write(1, block)"
    worker = Worker(tmp_path, code)
    worker.process.wait()
    worker.reader.close()
    written = [tmp_path / name for name in ("rank-0.log.3", "rank-0.log.2", "rank-0.log.1", "rank-0.log")]
    sizes = [path.stat().st_size for path in written if path.exists()]
    assert sum(sizes) == count * 125


def test_an_unfinished_line_is_shown_while_the_worker_continues(tmp_path: Path) -> None:
    code = """
    say("working ...", end="")
    while not os.path.exists("go"): time.sleep(0.01)
    say(" done"); say("next")
    """
    worker = Worker(tmp_path, code)
    until(lambda: worker.lines() == ["working ..."])
    (tmp_path / "go").touch()
    assert worker.end() == ["working ...", " done", "next"]


def test_the_end_of_a_line_that_was_shown_already_is_no_empty_line(tmp_path: Path) -> None:
    code = """
    say("working", end="")
    while not os.path.exists("go"): time.sleep(0.01)
    say(""); say("next")
    """
    worker = Worker(tmp_path, code)
    until(lambda: worker.lines() == ["working"])
    (tmp_path / "go").touch()
    assert worker.end() == ["working", "next"]


def test_a_progress_bar_is_a_line_each_time_it_moves(tmp_path: Path) -> None:
    code = """
    say("before")
    for i in range(3): say(f"\\r {i}%", end="")
    say(""); say("windows\\r"); say("\\r", end=""); say("after")
    """
    assert Worker(tmp_path, code).end() == ["before", " 0%", " 1%", " 2%", "windows", "after"]


def test_a_very_long_line_comes_in_pieces_and_whole(tmp_path: Path) -> None:
    code = """
    for i in range(300): say(str(i % 10) * 1000, end="")
    while not os.path.exists("go"): time.sleep(0.01)
    say("!")
    """
    worker = Worker(tmp_path, code)
    until(lambda: sum(map(len, worker.lines())) == 300_000, every_s=0.02)
    assert max(map(len, worker.lines())) <= MAX_LINE_BYTES
    (tmp_path / "go").touch()
    assert "".join(worker.end()) == "".join(str(i % 10) * 1000 for i in range(300)) + "!"


def test_children_that_keep_the_pipe_do_not_keep_the_reader(tmp_path: Path) -> None:
    code = """
    print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid, flush=True)
    child = "import os, time\\nfor i in range(600): os.write(1, b'child\\\\n'); time.sleep(0.1)"
    print(subprocess.Popen([sys.executable, "-c", child]).pid, flush=True)
    say("last words", end="")
    """
    worker = Worker(tmp_path, code)
    lines = worker.end()
    for line in lines:
        if line.isdigit():
            os.kill(int(line), 9)
    assert "last words" in "".join(lines)


def test_a_full_disk_costs_lines_but_neither_worker_nor_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, log = os.write, str(tmp_path / "rank-0.log")

    def full(descriptor: int, data: bytes) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}") == log and not (tmp_path / "go").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    code = """
    for i in range(50_000): say("m" * 99)
    while not os.path.exists("go"): time.sleep(0.01)
    say("there is room again"); say("and more")
    """
    worker = Worker(tmp_path, code)
    until(lambda: worker.notes)
    until(lambda: sum(map(len, worker.printed)) == 50_000 * 100)
    (tmp_path / "go").touch()
    gap, *rest = worker.end()
    assert gap == "[stoker: 5000000 bytes could not be written here]"
    assert rest == ["there is room again", "and more"]
    assert worker.notes == ["rank-0.log cannot be written (No space left on device): lines are missing in it"]


def test_a_secret_is_masked_however_it_is_printed(tmp_path: Path) -> None:
    key = "-----BEGIN KEY-----\nMIIabc/def+ghi==\nab\n"
    code = """
    import json
    quoted = 'pass"wörd\\\\'
    say("token=hunter2hunter2, hunter2"); print({"T": quoted}, flush=True); print(json.dumps([quoted]), flush=True)
    say("MIIabc/def+ghi=="); say("hunt"); say("ab")
    """
    worker = Worker(tmp_path, code, secrets=("hunter2", 'pass"wörd\\', key, "ab", ""))
    lines = worker.end()
    assert lines == ["token=******, ***", "{'T': '***'}", '["***"]', "***", "hunt", "ab"]
    assert b"hunter2" not in b"".join(worker.printed)
    assert "hunter2" not in worker.reader.tail


def test_a_secret_in_two_halves_is_not_shown_in_two_halves(tmp_path: Path) -> None:
    code = """
    say("a hunt", end="")
    while not os.path.exists("go"): time.sleep(0.01)
    say("er2 and a hunt", end=""); say("ing")
    say("m" * 65534 + "hunt" + "er2" + "m" * 70000)
    say("hunter", end=""); die()
    """
    worker = Worker(tmp_path, code, secrets=("hunter2",))
    until(lambda: worker.lines() == ["a "])
    (tmp_path / "go").touch()
    lines = worker.end()
    assert lines[:2] == ["a ", "*** and a hunting"]
    assert "".join(lines[2:-1]) == "m" * 65534 + "***" + "m" * 70000
    assert lines[-1] == "***", "killed in the middle of it"


def test_a_token_that_nobody_declared_is_not_shown_in_two_halves_either(tmp_path: Path) -> None:
    token = "hf_" + "aB3" * 11
    code = f"""
    say("my hf_aB3aB3", end="")
    while not os.path.exists("go"): time.sleep(0.01)
    say("{token[9:]} is it"); say("m" * 65530 + " {token} " + "m" * 70000)
    say("see http://localhost:80", end="")
    """
    worker = Worker(tmp_path, code)
    until(lambda: worker.lines() == ["my "])
    (tmp_path / "go").touch()
    lines = worker.end()
    assert lines[:2] == ["my ", "*** is it"]
    assert "".join(lines[2:-1]) == "m" * 65530 + " *** " + "m" * 70000
    assert lines[-1] == "see http://localhost:80", "what could only have become a secret is shown at the end"


def test_the_quoted_last_line_is_of_this_attempt_and_short(tmp_path: Path) -> None:
    Worker(tmp_path, 'say("of the first attempt")').end()
    silent = Worker(tmp_path, "")
    silent.end()
    assert worker_exit(0, 1, output=silent.reader.tail).line == ""
    loud = Worker(tmp_path, 'say("q" * 5000); say("  "); say("")')
    loud.end()
    assert worker_exit(0, 1, output=loud.reader.tail).line == "q" * 500
