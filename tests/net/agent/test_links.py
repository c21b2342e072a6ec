"""The small server of an agent: where it listens, and to whom."""

import json
import socket

import pytest

from stoker.net.agent.links import Server, link


@pytest.fixture
def server() -> Server:
    return Server("127.0.0.1", 0, "secret")


def heard(server: Server, first: dict[str, object]) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(json.dumps(first).encode() + b"\n")
        connection.sendall(b"x" * 64)
        try:
            return connection.recv(64)
        except ConnectionResetError:
            return b""


def test_it_listens_on_its_own_address_alone(server: Server) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", server.port), timeout=30)


def test_only_who_knows_the_word_is_answered(server: Server) -> None:
    assert heard(server, {"token": "secret", "mode": "echo"}) != b""
    assert heard(server, {"token": "guess", "mode": "echo"}) == b""
    assert heard(server, {"mode": "echo"}) == b""


def test_a_link_has_its_figures(server: Server) -> None:
    found = link("127.0.0.1", server.port, "secret", seconds=0.1)
    assert found["own"] == "127.0.0.1"
    assert (found["fits"], found["ms"] > 0, found["gbits"] > 0, found["back"] > 0) == (None, True, True, True)
