"""Only regular files of a run directory are opened, and no line takes more than its limit."""

import errno
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stoker.rundir import RunDir, append_line
from stoker.rundir.files import FIRST_BLOCK_BYTES, MAX_LINE_BYTES, lines_backwards, lines_forward, write_atomic
from stoker.spec.files import NotRegularEntry, open_regular
from stoker.spec.run import ScriptSpec


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


OTHERS: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "folder": Path.mkdir,
    "socket": listen,
    "loop": lambda path: path.symlink_to(path.name),
    "link out of the run": lambda path: path.symlink_to("/etc/hostname"),
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.fixture(params=OTHERS)
def other(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Something else in the place of a file."""
    monkeypatch.chdir(tmp_path)  # the name of a socket has to be short
    OTHERS[request.param](Path("x"))
    return tmp_path / "x"


def test_only_a_regular_file_is_opened(other: Path) -> None:
    with pytest.raises(NotRegularEntry, match="x is not a regular file"):
        open_regular(other, follow_links=False)
    with pytest.raises(NotRegularEntry):
        open_regular(other, root=other.parent, follow_links=False)


def test_only_a_regular_file_is_written(other: Path) -> None:
    with pytest.raises(NotRegularEntry):
        append_line(other, {"a": 1})
    assert not Path("nothing").exists()


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("as it was")
    (tmp_path / "x").symlink_to("outside")
    write_atomic(tmp_path / "x", "new")
    assert (tmp_path / "outside").read_text() == "as it was"
    assert (tmp_path / "x").read_text() == "new"


def test_threads_that_write_the_same_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    texts = [str(number) * 100_000 for number in range(8)]
    with ThreadPoolExecutor(len(texts)) as pool:
        for _ in range(20):
            list(pool.map(lambda text: write_atomic(tmp_path / "x", text), texts))
            assert (tmp_path / "x").read_text() in texts
    assert os.listdir(tmp_path) == ["x"]


def test_a_write_that_fails_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(tmp_path / "x", "new")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("size", [9, 10, 11, 12, 25, 5 * MAX_LINE_BYTES])
def test_of_a_long_line_only_a_part_is_read_in_either_direction(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"one\n" + b"x" * size + b"\nthree\n")
    with path.open("rb") as file:
        forwards = list(lines_forward(file, max_bytes=10))
        backwards = list(lines_backwards(file, path.stat().st_size, max_bytes=10))
    assert [forwards[0], forwards[2]] == [b"one\n", b"three\n"] == [backwards[2], backwards[0]]
    whole = b"x" * size + b"\n"
    assert forwards[1] == whole[:11]
    assert backwards[1] == (whole if size <= 10 else b"x" * 11 + b"\n")


def test_a_lock_that_is_no_file_is_held_by_nobody_and_cannot_be_taken(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "tale")
    run.create(ScriptSpec(name="tale", script="train.py"), None)
    os.mkfifo(run.path / "lock")
    assert run.holder() is None
    assert run.skipped == {"lock": 1}
    with pytest.raises(NotRegularEntry), run.lock():
        pass


@pytest.mark.parametrize(
    "size", [0, 1, 100, FIRST_BLOCK_BYTES - 1, FIRST_BLOCK_BYTES, FIRST_BLOCK_BYTES + 1, 5 * FIRST_BLOCK_BYTES]
)
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
