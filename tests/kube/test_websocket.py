"""A websocket under load, and when it is closed."""

import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import httpx2
import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Ping, Request

from stoker.kube.websocket import Closed, NoUpgrade, websocket

Serve = Callable[[Callable[[socket.socket, WSConnection], None]], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server that handles each websocket with a function; returns its URL."""
    listener = socket.create_server(("127.0.0.1", 0))

    def start(talk: Callable[[socket.socket, WSConnection], None]) -> str:
        def run() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=handle, args=(peer,), daemon=True).start()

        def handle(peer: socket.socket) -> None:
            ws = WSConnection(ConnectionType.SERVER)
            while not any(isinstance(event, Request) for event in ws.events()):
                ws.receive_data(peer.recv(4096))
            peer.sendall(ws.send(AcceptConnection(subprotocol="v5")))
            talk(peer, ws)

        threading.Thread(target=run, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}/exec"

    yield start
    listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept()
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


def test_bytes_go_in_both_directions_at_once(serve: Serve) -> None:
    blocks = [bytes([number % 256]) * (1 + 997 * number % 70_000) for number in range(400)]
    with httpx2.Client() as client, websocket(client, serve(echo), ["v5", "v4"]) as ws:
        assert ws.subprotocol == "v5"
        writer = threading.Thread(target=lambda: [ws.send_bytes(block) for block in blocks])
        writer.start()
        received = [ws.receive_bytes(timeout=60) for _ in blocks]
        writer.join()
    assert hashlib.sha256(b"".join(received)).digest() == hashlib.sha256(b"".join(blocks)).digest()


def silent(peer: socket.socket, ws: WSConnection) -> None:
    del ws
    time.sleep(30)
    peer.close()


def test_closing_wakes_a_waiting_reader(serve: Serve) -> None:
    woken = threading.Event()
    with httpx2.Client() as client, websocket(client, serve(silent), ["v5"]) as ws:

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


def test_closing_wakes_a_blocked_writer(serve: Serve) -> None:
    woken = threading.Event()
    with httpx2.Client() as client, websocket(client, serve(silent), ["v5"]) as ws:

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


def test_receive_times_out_when_nothing_comes(serve: Serve) -> None:
    with httpx2.Client() as client, websocket(client, serve(silent), ["v5"]) as ws, pytest.raises(TimeoutError):
        ws.receive_bytes(timeout=0.05)


def test_a_refused_upgrade_carries_the_servers_message() -> None:
    def refuse() -> None:
        peer, _ = listener.accept()
        peer.recv(4096)
        body = b'{"message": "pods \\"x\\" not found"}'
        peer.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        peer.close()

    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=refuse, daemon=True).start()
    with (
        httpx2.Client() as client,
        pytest.raises(NoUpgrade) as caught,
        websocket(client, f"http://127.0.0.1:{listener.getsockname()[1]}/exec", ["v5"]),
    ):
        pass
    assert "not found" in caught.value.response.text
    listener.close()
