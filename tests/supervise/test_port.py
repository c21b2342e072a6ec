"""A port that is chosen for the workers is still free when the first of them listens there."""

import socket
from pathlib import Path

import pytest

from stoker.supervise import port
from stoker.supervise.port import free_port


def test_it_is_none_that_the_system_gives_to_others() -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not any(low <= free_port("127.0.0.1") <= high for _ in range(100))


def test_one_that_is_used_at_another_address_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.3", free_port("127.0.0.3"))) as other:
        used = other.getsockname()[1]
        monkeypatch.setattr(port, "PORTS", [used, used + 1])
        monkeypatch.setattr(port, "TRIES", 2)
        assert {free_port("127.0.0.2") for _ in range(20)} == {used + 1}


def test_where_all_of_ours_are_used_the_system_picks_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.3", free_port("127.0.0.3"))) as other:
        monkeypatch.setattr(port, "PORTS", [other.getsockname()[1]])
        monkeypatch.setattr(port, "TRIES", 1)
        found = free_port("127.0.0.2")
    with socket.create_server(("127.0.0.2", found)) as mine:
        assert mine.getsockname()[1] == found
