"""Where workers find each other: a socket on one address, and for a script a process that serves torch's store."""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.spec.run import ScriptSpec
from stoker.supervise.workers.store_server import StoreServer, is_store_expected, open_store_socket
from tests.processes import descendants, is_alive
from tests.waiting import until

Serve = Callable[..., StoreServer]


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with open_store_socket("127.0.0.1") as listener:
        yield listener


@pytest.fixture
def serve(listener: socket.socket, notes: list[str]) -> Iterator[Serve]:
    started: list[StoreServer] = []

    def make(*, at_once: bool) -> StoreServer:
        started.append(StoreServer(listener, os.environ, at_once=at_once, note=notes.append))
        return started[-1]

    yield make
    for server in started:
        server.close()


def servers() -> list[int]:
    return [pid for pid in descendants(os.getpid()) if b"stoker.train.tcp_store" in cmdline(pid)]


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "::1"])
def test_it_listens_only_on_its_address(address: str) -> None:
    with open_store_socket(address) as listener:
        assert listener.getsockname()[0] == address
        port = listener.getsockname()[1]
        socket.create_connection((address, port), timeout=30).close()
        other = "127.0.0.3"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((other, port), timeout=30)


def test_the_store_is_not_served_before_a_worker_connects(listener: socket.socket, serve: Serve) -> None:
    server = serve(at_once=False)
    assert server.poll()
    assert servers() == []
    with socket.create_connection(listener.getsockname(), timeout=30):
        assert server.poll()
        (pid,) = servers()
    server.close()
    assert not is_alive(pid)
    assert server.poll(), "closed on purpose"


def test_a_store_that_ends_by_itself_is_reported_once(serve: Serve, notes: list[str]) -> None:
    server = serve(at_once=True)
    (pid,) = servers()
    assert server.poll()
    os.kill(pid, 9)
    until(lambda: not server.poll())
    assert not server.poll()
    assert notes == ["the process that serves torch's store ended with code -9"]


@pytest.mark.parametrize(
    ("text", "world", "expected"),
    [("import torch\n", 2, True), ("import torch\n", 1, False), ("print(1)\n", 2, False), (None, 2, False)],
)
def test_the_store_is_expected_where_several_workers_use_torch(
    tmp_path: Path, text: str | None, world: int, expected: bool
) -> None:
    script = tmp_path / "train.py"
    if text is not None:
        script.write_text(text)
    assert is_store_expected(ScriptSpec(name="tale", script=str(script)), world=world) is expected
