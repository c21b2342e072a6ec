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

from stoker.backends.transfer.frames import HEAD, JSON, READ_AHEAD, Frames, PeerLost
from stoker.backends.transfer.meter import TransferMeter, TransferProgress
from stoker.backends.transfer.receive import receive
from stoker.backends.transfer.send import Item, send
from stoker.backends.transfer.target import Target

SILENCE_TIMEOUT_S = 2.0
BUSY_S = 2 * SILENCE_TIMEOUT_S


class SocketPipe:
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
    near, far = socket.socketpair()
    first, second = (Frames(SocketPipe(end), silence_timeout_s=SILENCE_TIMEOUT_S) for end in (near, far))
    return first, second


def run_both(remote: Callable[[], None], local: Callable[[], None]) -> None:
    errors: list[Exception] = []

    def work() -> None:
        try:
            remote()
        except Exception as e:
            errors.append(e)

    thread = threading.Thread(target=work)
    thread.start()
    local()
    thread.join()
    assert errors == []


@pytest.mark.slow
def test_a_peer_that_waits_for_another_transfer_is_not_lost(ends: tuple[Frames, Frames], tmp_path: Path) -> None:
    work = tmp_path / "d/.stoker-transfer/all"
    work.mkdir(parents=True)
    lock = open(work / "lock", "a")  # noqa: SIM115 (closed by the timer)
    fcntl.flock(lock, fcntl.LOCK_EX)
    threading.Timer(BUSY_S, lock.close).start()
    item = Item(files={"f": b"text"}, into="d", key="k")
    run_both(lambda: receive(ends[0], tmp_path), lambda: send(ends[1], [item]))
    assert (tmp_path / "d/f").read_bytes() == b"text"


@pytest.mark.slow
def test_a_peer_that_hashes_existing_files_is_not_lost(
    ends: tuple[Frames, Frames], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Target.wanted
    monkeypatch.setattr(Target, "wanted", lambda self: (time.sleep(BUSY_S), wanted(self))[1])  # it hashes what is large
    item = Item(files={"f": b"text"}, into="d", key="k")
    run_both(lambda: receive(ends[0], tmp_path), lambda: send(ends[1], [item]))
    assert (tmp_path / "d/f").read_bytes() == b"text"


@pytest.mark.slow
def test_a_slow_receiver_buffers_a_bounded_amount(ends: tuple[Frames, Frames]) -> None:
    slow, quick = ends
    pieces = [bytes([number]) * (1 << 20) for number in range(3 * READ_AHEAD >> 20)]

    def take() -> None:
        with slow.kept_alive():
            time.sleep(BUSY_S)
            assert len(slow._buffer) < READ_AHEAD + (1 << 20)
            assert [slow.receive() for _ in pieces] == pieces
            slow.send_message(done=True)

    def give() -> None:
        with quick.kept_alive():
            for piece in pieces:
                quick.send_bytes(piece)
            assert quick.message() == {"done": True}

    run_both(take, give)


@pytest.mark.slow
def test_a_silent_peer_counts_as_lost(remote: Any, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(30_000_000))
    pipe = remote.connect(["-m", "stoker.backends.transfer", "receive", remote.root])
    pipe.process.send_signal(signal.SIGSTOP)
    with pytest.raises(PeerLost):
        send(Frames(pipe, silence_timeout_s=2), [Item(files={"x": tmp_path / "x"}, into="data")])


def test_data_that_is_not_a_frame_is_refused(remote: Any) -> None:
    pipe = remote.connect(["-c", "print('bash: warning: something')"])
    with pytest.raises(PeerLost, match="not a frame"):
        Frames(pipe).receive()


@pytest.mark.parametrize("data", [b"{", b"[]", b"[" * 100_000, b"\xff"])
def test_a_message_that_is_not_an_object_is_refused(data: bytes) -> None:
    near, far = socket.socketpair()
    far.sendall(HEAD.pack(JSON, len(data)) + data)
    with far, pytest.raises(PeerLost, match="not a message"):
        Frames(SocketPipe(near)).receive()


def test_an_error_while_answers_are_read_is_not_taken_for_success(
    ends: tuple[Frames, Frames], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.backends.transfer.meter.REPORT_EVERY_S", 0.0)

    def show(_: TransferProgress) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise BrokenPipeError("the terminal is closed")

    def receive_in_vain() -> None:
        with suppress(PeerLost):
            receive(ends[0], tmp_path)

    def send_and_fail() -> None:
        with pytest.raises(BrokenPipeError):
            send(ends[1], [Item(files={"f": b"text"}, into="d")], TransferMeter(show))

    run_both(receive_in_vain, send_and_fail)


def test_a_disconnected_process_ends_by_itself(remote: Any) -> None:
    pipe = remote.connect(["-m", "stoker.backends.transfer", "receive", remote.root])
    pipe.process.stdin.close()
    assert pipe.process.wait(timeout=60) == 75
