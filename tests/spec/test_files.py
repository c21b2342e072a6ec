"""Only regular files are read, up to a size limit."""

import os
import socket
from pathlib import Path

import pytest

from stoker.spec.errors import UserError
from stoker.spec.files import NotRegularEntry, check_regular, open_regular, read_regular, read_text


def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for read in (open_regular, check_regular, read_text):
        with pytest.raises(UserError, match=r"pipe is a pipe, not a regular file\. Save its content to a file"):
            read(tmp_path / "pipe")


def test_devices_and_sockets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="/dev/zero is a device"):
        open_regular("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        with pytest.raises(UserError, match="is a socket"):
            open_regular(tmp_path / "socket")


def test_a_file_that_cannot_be_opened_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for path, error in (
        (tmp_path, IsADirectoryError),
        (tmp_path / "no", FileNotFoundError),
        (tmp_path / "loop", OSError),
    ):
        with pytest.raises(error):
            open_regular(path)


def test_a_link_to_a_file_is_followed_and_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a\r\nb\n")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link", max_bytes=5) == b"a\r\nb\n"
    assert read_text(tmp_path / "link") == "a\nb\n"


def test_a_file_that_is_too_large_is_not_read_whole(tmp_path: Path) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match="sparse is larger than 1 MiB"):
        read_text(tmp_path / "sparse")


def test_no_folder_on_the_way_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x").write_text("secret")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "logs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotRegularEntry):
        open_regular(tmp_path / "run" / "logs" / "x", root=tmp_path / "run", follow_links=False)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "run" / "missing" / "x", root=tmp_path / "run", follow_links=False)
    (tmp_path / "linked").symlink_to("run")  # a run itself may be one
    (tmp_path / "run" / "spec").write_text("a")
    assert read_regular(tmp_path / "linked" / "spec", max_bytes=1, root=tmp_path / "linked", follow_links=False) == b"a"


def test_a_file_beyond_its_limit_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    assert read_regular(tmp_path / "x", max_bytes=5, follow_links=False) == b"12345"
    with pytest.raises(ValueError, match="larger than 4 bytes"):
        read_regular(tmp_path / "x", max_bytes=4, follow_links=False)
