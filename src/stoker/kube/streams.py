"""exec and port-forward: bytes both ways over a websocket, in channels."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import BinaryIO

import httpx

from stoker.kube.kinds import Kind
from stoker.kube.refusals import Lost, Refused, refusal, unreachable
from stoker.kube.session import Session
from stoker.kube.websocket import Closed, NoUpgrade, WebSocket, websocket

STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
CLOSABLE = "v5.channel.k8s.io"  # the first protocol in which stdin has an end; Kubernetes 1.30
PLAIN = "v4.channel.k8s.io"
CHUNK = 64 * 1024
BROKEN = (Closed, httpx.TransportError, OSError)
"""What a connection that is gone looks like to whoever reads or writes it."""
EXEC = Kind("exec", "v1", "pods/exec")
FORWARD = Kind("port-forward", "v1", "pods/portforward")


def exec(
    session: Session,
    url: str,
    pod: str,
    command: Sequence[str],
    *,
    container: str | None,
    stdin: BinaryIO | None,
    stdout: BinaryIO | None,
    stderr: BinaryIO | None,
    tty: Callable[[], tuple[int, int]] | None,
) -> int:
    params: list[tuple[str, str]] = [("command", word) for word in command]
    params += [("container", container)] if container else []
    params += [(name, "true") for name, on in (("stdin", stdin), ("stdout", stdout), ("tty", tty)) if on is not None]
    params += [("stderr", "true")] if stderr is not None and tty is None else []
    with _open(session, url, pod, params, EXEC, (CLOSABLE, PLAIN)) as ws:
        if stdin is not None and tty is None and ws.subprotocol != CLOSABLE:
            raise Refused(
                f"{session.who} is too old to send a stream to a pod", remedy="Kubernetes 1.30 or newer can", code=400
            )
        if stdin is not None:
            threading.Thread(target=_send, args=(ws, stdin, ws.subprotocol == CLOSABLE), daemon=True).start()
        return _receive(ws, pod, {STDOUT: stdout, STDERR: stderr}, tty)


def _send(ws: WebSocket, stdin: BinaryIO, closable: bool) -> None:
    read = getattr(stdin, "read1", stdin.read)  # what a terminal has typed is sent before the buffer is full
    with contextlib.suppress(*BROKEN):  # the command ended before
        while block := read(CHUNK):
            ws.send_bytes(bytes([STDIN]) + block)
        if closable:
            ws.send_bytes(bytes([CLOSE, STDIN]))


def _receive(
    ws: WebSocket,
    pod: str,
    outputs: dict[int, BinaryIO | None],
    tty: Callable[[], tuple[int, int]] | None,
) -> int:
    size: tuple[int, int] | None = None
    while True:
        if tty is not None and size != (now := tty()):
            size = now
            ws.send_bytes(bytes([RESIZE]) + json.dumps({"Width": size[0], "Height": size[1]}).encode())
        try:
            message = ws.receive_bytes(timeout=None if tty is None else 0.5)
        except TimeoutError:
            continue
        except BROKEN as e:
            raise Lost(f"the connection to pod {pod} broke off", remedy="Run it again") from e
        channel, block = message[0], message[1:]
        if channel == STATUS:
            return _exit_code(json.loads(block), pod)
        output = outputs.get(channel)
        if output is not None and block:
            output.write(block)
            output.flush()


def _exit_code(status: dict[str, object], pod: str) -> int:
    if status.get("status") == "Success":
        return 0
    details = status.get("details")
    causes = details.get("causes", []) if isinstance(details, dict) else []
    for cause in causes or []:
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    raise Refused(f"pod {pod} cannot run it: {status.get('message')}", remedy="See: kubectl describe pod", code=400)


@contextmanager
def port_forward(session: Session, url: str, pod: str, port: int) -> Iterator[int]:
    with _open(session, url, pod, [("ports", str(port))], FORWARD, (PLAIN,)):
        pass  # what would be refused is told now, not to whoever connects
    listener = socket.create_server(("127.0.0.1", 0))
    open_now: set[socket.socket] = set()

    def serve() -> None:
        with contextlib.suppress(OSError):  # closed below
            while True:
                connection, _ = listener.accept()
                open_now.add(connection)
                threading.Thread(target=carry, args=(connection,), daemon=True).start()

    def carry(connection: socket.socket) -> None:
        with (
            connection,
            contextlib.suppress(Refused, *BROKEN),
            _open(session, url, pod, [("ports", str(port))], FORWARD, (PLAIN,)) as ws,
        ):
            threading.Thread(target=_outwards, args=(ws, connection), daemon=True).start()
            _inwards(ws, connection)
        open_now.discard(connection)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # a close alone does not wake the one who accepts
        listener.close()
        for connection in list(open_now):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _outwards(ws: WebSocket, connection: socket.socket) -> None:
    with contextlib.suppress(*BROKEN):
        while block := connection.recv(CHUNK):
            ws.send_bytes(bytes([0]) + block)
    ws.close()


def _inwards(ws: WebSocket, connection: socket.socket) -> None:
    """The first message of each channel is the port that it is of."""
    met: set[int] = set()
    while True:
        message = ws.receive_bytes()
        channel, block = message[0], message[1:]
        if channel not in met:
            met.add(channel)
        elif channel == 0:
            connection.sendall(block)
        else:
            return  # nothing listens in the pod


def _open(
    session: Session,
    url: str,
    pod: str,
    params: list[tuple[str, str]],
    kind: Kind,
    protocols: tuple[str, ...],
) -> AbstractContextManager[WebSocket]:
    return _opened(session, str(httpx.URL(session.server + url, params=params)), pod, kind, protocols)


@contextmanager
def _opened(session: Session, url: str, pod: str, kind: Kind, protocols: tuple[str, ...]) -> Iterator[WebSocket]:
    try:
        with websocket(session.client, url, protocols) as ws:
            yield ws
    except NoUpgrade as e:
        raise refusal(e.response, verb="create", kind=kind, name=pod, namespace=None, who=session.who) from e
    except (httpx.ConnectError, httpx.ConnectTimeout) as e:
        raise unreachable(e, server=session.server, who=session.who) from e
