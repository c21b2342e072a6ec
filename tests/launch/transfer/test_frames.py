"""Ends that fall silent, and bytes that are no frames."""

import fcntl
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from stoker.launch.transfer.frames import AHEAD, Cut, Frames
from stoker.launch.transfer.receive import receive
from stoker.launch.transfer.send import Item, send
from stoker.launch.transfer.target import Target

SILENCE = 2.0
LONG = 2 * SILENCE


class Plug:
    """An end of a pipe within this process."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def read(self, most: int) -> bytes:
        return self._end.recv(most)

    def write(self, data: bytes) -> None:
        self._end.sendall(data)

    def close(self) -> None:
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> tuple[Frames, Frames]:
    """Two that take each other to be gone after a short while."""
    monkeypatch.setattr("stoker.launch.transfer.frames.BEAT", 0.3)
    one, other = socket.socketpair()
    return Frames(Plug(one), silence=SILENCE), Frames(Plug(other), silence=SILENCE)


def both(there: Callable[[], None], here: Callable[[], None]) -> None:
    wrong: list[Exception] = []

    def work() -> None:
        try:
            there()
        except Exception as e:
            wrong.append(e)

    thread = threading.Thread(target=work)
    thread.start()
    here()
    thread.join()
    assert wrong == []


def test_who_waits_for_another_transfer_is_not_taken_to_be_gone(ends: tuple[Frames, Frames], tmp_path: Path) -> None:
    work = tmp_path / "d/.stoker-transfer/all"
    work.mkdir(parents=True)
    lock = open(work / "lock", "a")  # noqa: SIM115 (closed by the timer)
    fcntl.flock(lock, fcntl.LOCK_EX)
    threading.Timer(LONG, lock.close).start()
    item = Item(files={"f": b"text"}, into="d", key="k")
    both(lambda: receive(ends[0], tmp_path), lambda: send(ends[1], [item]))
    assert (tmp_path / "d/f").read_bytes() == b"text"


def test_who_looks_at_what_is_there_is_not_taken_to_be_gone(
    ends: tuple[Frames, Frames], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Target.wanted
    monkeypatch.setattr(Target, "wanted", lambda self: (time.sleep(LONG), wanted(self))[1])  # it hashes what is large
    item = Item(files={"f": b"text"}, into="d", key="k")
    both(lambda: receive(ends[0], tmp_path), lambda: send(ends[1], [item]))
    assert (tmp_path / "d/f").read_bytes() == b"text"


def test_who_writes_slowly_has_no_more_in_memory_than_it_should(ends: tuple[Frames, Frames]) -> None:
    slow, quick = ends
    pieces = [bytes([number]) * (1 << 20) for number in range(3 * AHEAD >> 20)]

    def take() -> None:
        with slow.kept_alive():
            time.sleep(LONG)
            assert len(slow._held) < AHEAD + (1 << 20)
            assert [slow.hear() for _ in pieces] == pieces
            slow.say(done=True)

    def give() -> None:
        with quick.kept_alive():
            for piece in pieces:
                quick.send(piece)
            assert quick.message() == {"done": True}

    both(take, give)


def test_an_end_that_falls_silent_is_taken_to_be_gone(there: Any, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(30_000_000))
    pipe = there.connect(["-m", "stoker.launch.transfer", "receive", there.root])
    pipe.process.send_signal(signal.SIGSTOP)
    with pytest.raises(Cut):
        send(Frames(pipe, silence=2), [Item(files={"x": tmp_path / "x"}, into="data")])


def test_what_is_no_frame_is_not_believed(there: Any) -> None:
    pipe = there.connect(["-c", "print('bash: warning: something')"])
    with pytest.raises(Cut, match="no frame"):
        Frames(pipe).hear()


def test_who_is_cut_off_ends_by_itself(there: Any) -> None:
    pipe = there.connect(["-m", "stoker.launch.transfer", "receive", there.root])
    pipe.process.stdin.close()
    assert pipe.process.wait(timeout=60) == 75
