from pathlib import Path

import pytest

from stoker.observe.tail import Tail
from stoker.rundir.files import BLOCK, lines_backwards
from stoker.rundir.records import records_backwards


def anything(_record: dict) -> bool:
    return True


def test_only_whole_lines_are_handed_out_and_each_once(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    tail = Tail(path)
    assert list(tail.records(anything)) == []
    path.write_text('{"a": 1}\n{"a": ')
    assert list(tail.records(anything)) == [{"a": 1}]
    with path.open("a") as file:
        file.write('2}\n\n{"torn\n{"a": 3}\n')
    assert list(tail.records(anything)) == [{"a": 2}, {"a": 3}]
    assert list(tail.records(anything)) == []
    assert tail.skipped == 1


def test_from_now_leaves_out_what_is_there_already(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text('{"old": 1}\n')
    tail = Tail.from_now(path)
    with path.open("a") as file:
        file.write('{"new": 1}\n')
    assert list(tail.records(anything)) == [{"new": 1}]


@pytest.mark.parametrize("size", [0, 1, 100, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK])
@pytest.mark.parametrize("end", ["", "\n", "\n\n", "torn"])
def test_lines_are_read_from_the_end_as_they_are_from_the_start(tmp_path: Path, size: int, end: str) -> None:
    path = tmp_path / "log"
    path.write_text("first\n\n" + "x" * size + "\n" + end)
    with path.open("rb") as file:
        forwards = list(file)
        backwards = list(lines_backwards(file, path.stat().st_size))
    assert backwards == forwards[::-1]


def test_what_is_written_after_the_end_that_was_seen_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("one\ntwo\nthree\n")
    with path.open("rb") as file:
        assert list(lines_backwards(file, len("one\ntw"))) == [b"tw", b"one\n"]
        assert list(lines_backwards(file, 0)) == []


def test_records_come_newest_first_without_torn_ones(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    assert list(records_backwards(path, anything)) == []
    path.write_text('{"kind": "a", "n": 1}\n{"torn\n\n3\n{"kind": "b", "n": 2}\n{"kind": "a", "n": 3}\n{"n": ')
    assert [record["n"] for record in records_backwards(path, anything)] == [3, 2, 1]
    assert [record["n"] for record in records_backwards(path, anything, b'"kind": "a"')] == [3, 1]
