"""Only regular files of a run directory are opened, and no line takes more than its limit."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.rundir import RunDir, append_line
from stoker.rundir.files import (
    LINE_BYTES,
    NotRegular,
    lines_backwards,
    lines_forward,
    open_regular,
    read_regular,
    write_atomic,
)
from stoker.spec.run import ScriptSpec


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


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
    """What stands in the place of a file."""
    monkeypatch.chdir(tmp_path)  # the name of a socket has to be short
    OTHERS[request.param](Path("x"))
    return tmp_path / "x"


def test_what_is_no_regular_file_is_not_opened(other: Path) -> None:
    with pytest.raises(NotRegular, match="x is not a regular file"):
        open_regular(other)
    with pytest.raises(NotRegular):
        open_regular(other, root=other.parent)


def test_what_is_no_regular_file_is_not_written(other: Path) -> None:
    with pytest.raises(NotRegular):
        append_line(other, {"a": 1})
    assert not Path("nothing").exists()


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("as it was")
    (tmp_path / "x").symlink_to("outside")
    write_atomic(tmp_path / "x", "new")
    assert (tmp_path / "outside").read_text() == "as it was"
    assert (tmp_path / "x").read_text() == "new"


def test_no_folder_on_the_way_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x").write_text("secret")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "logs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotRegular):
        open_regular(tmp_path / "run" / "logs" / "x", root=tmp_path / "run")
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "run" / "missing" / "x", root=tmp_path / "run")
    (tmp_path / "linked").symlink_to("run")  # a run itself may be one
    (tmp_path / "run" / "spec").write_text("a")
    assert read_regular(tmp_path / "linked" / "spec", max_bytes=1, root=tmp_path / "linked") == b"a"


def test_a_file_beyond_its_limit_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    assert read_regular(tmp_path / "x", max_bytes=5) == b"12345"
    with pytest.raises(ValueError, match="more than 4 bytes"):
        read_regular(tmp_path / "x", max_bytes=4)


@pytest.mark.parametrize("size", [9, 10, 11, 12, 25, 5 * LINE_BYTES])
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
    with pytest.raises(NotRegular), run.lock():
        pass
