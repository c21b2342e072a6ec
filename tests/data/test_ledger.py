import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stoker.data.ledger import Ledger, read


def test_records_are_read_back(tmp_path: Path) -> None:
    tokens = np.arange(12).reshape(2, 6)
    for rank in range(2):
        with Ledger(tmp_path, attempt=3, rank=rank, world=2, start=10) as ledger:
            ledger.record(11, np.array([5, 10**12]), tokens + rank)
            ledger.record(12, np.empty(0, np.int64), tokens[:0])
            ledger.sync()
    (attempt,) = read(tmp_path)
    assert (attempt.attempt, attempt.world, attempt.start, sorted(attempt.files)) == (3, 2, 10, [0, 1])
    first, second = attempt.steps(1)
    assert (first.step, first.samples.tolist()) == (11, [5, 10**12])
    assert first.hash == hashlib.blake2b((tokens + 1).astype("<i8").tobytes(), digest_size=16).hexdigest()
    assert (second.step, second.samples.tolist()) == (12, [])
    assert (tmp_path / "attempt-0003-rank-0001.jsonl").is_file()


def test_the_hash_is_of_the_rows_in_order_however_they_lie_in_memory(tmp_path: Path) -> None:
    tokens = np.arange(12).reshape(2, 6)
    with Ledger(tmp_path, attempt=1, rank=0, world=1, start=0) as ledger:
        for step, rows in enumerate([tokens, np.asfortranarray(tokens), tokens.astype(np.int32), tokens[::-1]], 1):
            ledger.record(step, np.array([0, 1]), rows)
    a, b, c, swapped = (record.hash for record in read(tmp_path)[0].steps(0))
    assert a == b == c != swapped


def test_attempts_are_read_in_their_order(tmp_path: Path) -> None:
    for attempt in (1, 2, 12):
        Ledger(tmp_path, attempt=attempt, rank=0, world=1, start=0).close()
    assert [ledger.attempt for ledger in read(tmp_path)] == [1, 2, 12]


def test_a_torn_last_line_is_passed_over(tmp_path: Path) -> None:
    with Ledger(tmp_path, attempt=1, rank=0, world=1, start=0) as ledger:
        ledger.record(1, np.array([0]), np.zeros((1, 2), np.int64))
        ledger.record(2, np.array([1]), np.zeros((1, 2), np.int64))
    path = tmp_path / "attempt-0001-rank-0000.jsonl"
    os.truncate(path, path.stat().st_size - 10)
    assert [record.step for record in read(tmp_path)[0].steps(0)] == [1]
    os.truncate(path, 5)
    assert read(tmp_path) == []


def test_ranks_that_disagree_about_their_attempt_are_refused(tmp_path: Path) -> None:
    Ledger(tmp_path, attempt=1, rank=0, world=2, start=0).close()
    Ledger(tmp_path, attempt=1, rank=1, world=2, start=5).close()
    with pytest.raises(ValueError, match="start 5"):
        read(tmp_path)


def test_a_killed_process_loses_no_line(tmp_path: Path) -> None:
    script = f"""
import os, signal, numpy as np
from pathlib import Path
from stoker.data.ledger import Ledger
ledger = Ledger(Path({str(tmp_path)!r}), attempt=1, rank=0, world=1, start=0)
for step in range(1, 101):
    ledger.record(step, np.array([step]), np.zeros((1, 2), np.int64))
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == -signal.SIGKILL
    assert [record.step for record in read(tmp_path)[0].steps(0)] == list(range(1, 101))
