"""Silent peers, and bytes that are not frames."""

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

from stoker.backends.transfer.frames import READ_AHEAD, Frames, PeerLost
from stoker.backends.transfer.receive import receive
from stoker.backends.transfer.send import Item, send
from stoker.backends.transfer.target import Target

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
    """Two ends with a short silence timeout."""
    monkeypatch.setattr("stoker.backends.transfer.frames.HEARTBEAT_S", 0.3)
    one, other = socket.socketpair()
    return Frames(Plug(one), silence_timeout_s=SILENCE), Frames(Plug(other), silence_timeout_s=SILENCE)


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


def test_a_peer_that_waits_for_another_transfer_is_not_lost(ends: tuple[Frames, Frames], tmp_path: Path) -> None:
    work = tmp_path / "d/.stoker-transfer/all"
    work.mkdir(parents=True)
    lock = open(work / "lock", "a")  # noqa: SIM115 (closed by the timer)
    fcntl.flock(lock, fcntl.LOCK_EX)
    threading.Timer(LONG, lock.close).start()
    item = Item(files={"f": b"text"}, into="d", key="k")
    both(lambda: receive(ends[0], tmp_path), lambda: send(ends[1], [item]))
    assert (tmp_path / "d/f").read_bytes() == b"text"


def test_a_peer_that_hashes_existing_files_is_not_lost(
    ends: tuple[Frames, Frames], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Target.wanted
    monkeypatch.setattr(Target, "wanted", lambda self: (time.sleep(LONG), wanted(self))[1])  # it hashes what is large
    item = Item(files={"f": b"text"}, into="d", key="k")
    both(lambda: receive(ends[0], tmp_path), lambda: send(ends[1], [item]))
    assert (tmp_path / "d/f").read_bytes() == b"text"


def test_a_slow_receiver_buffers_a_bounded_amount(ends: tuple[Frames, Frames]) -> None:
    slow, quick = ends
    pieces = [bytes([number]) * (1 << 20) for number in range(3 * READ_AHEAD >> 20)]

    def take() -> None:
        with slow.kept_alive():
            time.sleep(LONG)
            assert len(slow._buffer) < READ_AHEAD + (1 << 20)
            assert [slow.receive() for _ in pieces] == pieces
            slow.send_message(done=True)

    def give() -> None:
        with quick.kept_alive():
            for piece in pieces:
                quick.send_bytes(piece)
            assert quick.message() == {"done": True}

    both(take, give)


def test_a_silent_peer_counts_as_lost(there: Any, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(30_000_000))
    pipe = there.connect(["-m", "stoker.backends.transfer", "receive", there.root])
    pipe.process.send_signal(signal.SIGSTOP)
    with pytest.raises(PeerLost):
        send(Frames(pipe, silence_timeout_s=2), [Item(files={"x": tmp_path / "x"}, into="data")])


def test_data_that_is_not_a_frame_is_refused(there: Any) -> None:
    pipe = there.connect(["-c", "print('bash: warning: something')"])
    with pytest.raises(PeerLost, match="not a frame"):
        Frames(pipe).receive()


def test_a_disconnected_process_ends_by_itself(there: Any) -> None:
    pipe = there.connect(["-m", "stoker.backends.transfer", "receive", there.root])
    pipe.process.stdin.close()
    assert pipe.process.wait(timeout=60) == 75
