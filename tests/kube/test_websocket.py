"""A websocket under load, and when it is closed."""

import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Ping, Request

from stoker.kube.websocket import Closed, NoUpgrade, websocket

Serve = Callable[[Callable[[socket.socket, WSConnection], None]], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve one websocket after the other; gives the URL."""
    listener = socket.create_server(("127.0.0.1", 0))

    def start(talk: Callable[[socket.socket, WSConnection], None]) -> str:
        def run() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=one, args=(peer,), daemon=True).start()

        def one(peer: socket.socket) -> None:
            ws = WSConnection(ConnectionType.SERVER)
            while not any(isinstance(event, Request) for event in ws.events()):
                ws.receive_data(peer.recv(4096))
            peer.sendall(ws.send(AcceptConnection(subprotocol="v5")))
            talk(peer, ws)

        threading.Thread(target=run, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}/exec"

    yield start
    listener.shutdown(socket.SHUT_RDWR)  # whoever accepts would go on otherwise
    listener.close()


def echo(peer: socket.socket, ws: WSConnection) -> None:
    peer.sendall(ws.send(Ping(b"are you there")))
    while data := peer.recv(1 << 16):
        ws.receive_data(data)
        for event in ws.events():
            if isinstance(event, BytesMessage):
                peer.sendall(ws.send(BytesMessage(event.data, message_finished=event.message_finished)))
            elif isinstance(event, CloseConnection):
                peer.sendall(ws.send(event.response()))
                peer.close()
                return


def test_bytes_go_both_ways_at_once(serve: Serve) -> None:
    blocks = [bytes([number % 256]) * (1 + 997 * number % 70_000) for number in range(400)]
    with httpx.Client() as client, websocket(client, serve(echo), ["v5", "v4"]) as ws:
        assert ws.subprotocol == "v5"
        writer = threading.Thread(target=lambda: [ws.send_bytes(block) for block in blocks])
        writer.start()
        found = [ws.receive_bytes(timeout=60) for _ in blocks]
        writer.join()
    assert hashlib.sha256(b"".join(found)).digest() == hashlib.sha256(b"".join(blocks)).digest()


def silent(peer: socket.socket, ws: WSConnection) -> None:
    del ws
    time.sleep(30)
    peer.close()


def test_who_reads_is_woken_when_it_is_closed(serve: Serve) -> None:
    woken = threading.Event()
    with httpx.Client() as client, websocket(client, serve(silent), ["v5"]) as ws:

        def read() -> None:
            with pytest.raises(Closed):
                ws.receive_bytes()
            woken.set()

        reader = threading.Thread(target=read)
        reader.start()
        time.sleep(0.2)
        ws.close()
        reader.join(timeout=60)
    assert woken.is_set()


def test_who_writes_to_nobody_is_woken_when_it_is_closed(serve: Serve) -> None:
    woken = threading.Event()
    with httpx.Client() as client, websocket(client, serve(silent), ["v5"]) as ws:

        def write() -> None:
            try:
                while True:
                    ws.send_bytes(bytes(1 << 20))
            except Closed:
                woken.set()

        threading.Thread(target=write, daemon=True).start()
        time.sleep(0.5)
        ws.close()
        assert woken.wait(timeout=60)


def test_one_that_has_nothing_to_say_is_not_waited_for_longer_than_asked(serve: Serve) -> None:
    with httpx.Client() as client, websocket(client, serve(silent), ["v5"]) as ws, pytest.raises(TimeoutError):
        ws.receive_bytes(timeout=0.05)


def test_a_refusal_is_told_with_its_reason() -> None:
    def refuse() -> None:
        peer, _ = listener.accept()
        peer.recv(4096)
        body = b'{"message": "pods \\"x\\" not found"}'
        peer.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        peer.close()

    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=refuse, daemon=True).start()
    with (
        httpx.Client() as client,
        pytest.raises(NoUpgrade) as caught,
        websocket(client, f"http://127.0.0.1:{listener.getsockname()[1]}/exec", ["v5"]),
    ):
        pass
    assert "not found" in caught.value.response.text
    listener.close()
