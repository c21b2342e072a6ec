"""The server of an agent: where it listens, and which requests it answers."""

import json
import socket

import pytest

from stoker.net.agent.links import Server, link


@pytest.fixture
def server() -> Server:
    return Server("127.0.0.1", 0, "secret")


def reply(server: Server, request: dict[str, object]) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(json.dumps(request).encode() + b"\n")
        connection.sendall(b"x" * 64)
        try:
            return connection.recv(64)
        except ConnectionResetError:
            return b""


def test_it_listens_only_on_its_own_address(server: Server) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", server.port), timeout=30)


def test_only_requests_with_the_token_are_answered(server: Server) -> None:
    assert reply(server, {"token": "secret", "mode": "echo"}) != b""
    assert reply(server, {"token": "guess", "mode": "echo"}) == b""
    assert reply(server, {"mode": "echo"}) == b""


def test_a_link_has_its_figures(server: Server) -> None:
    figures = link("127.0.0.1", server.port, "secret", seconds=0.1)
    assert figures["own"] == "127.0.0.1"
    assert (figures["fits"], figures["ms"] > 0, figures["gbits"] > 0, figures["back"] > 0) == (None, True, True, True)
