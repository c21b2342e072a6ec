"""exec: bytes in both directions over a websocket, in numbered channels."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import BinaryIO

import httpx2

from stoker.kube.errors import NO_PROGRAM, CannotExecute, ConnectionLost, Refused
from stoker.kube.kinds import Kind
from stoker.kube.session import UNAUTHORIZED, Session
from stoker.kube.websocket import Closed, NoUpgrade, WebSocket, websocket

STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
V5 = "v5.channel.k8s.io"  # the first protocol in which stdin can be closed; Kubernetes 1.30
V4 = "v4.channel.k8s.io"
CHUNK_BYTES = 64 * 1024
BROKEN = (Closed, httpx2.TransportError, OSError)
"""What reading or writing a lost connection raises."""
EXEC = Kind("exec", "v1", "pods/exec")


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
    params: list[tuple[str, str]] = [("command", argument) for argument in command]
    params += [("container", container)] if container else []
    params += [(name, "true") for name, on in (("stdin", stdin), ("stdout", stdout), ("tty", tty)) if on is not None]
    params += [("stderr", "true")] if stderr is not None and tty is None else []
    with _open(session, url, pod, params) as ws:
        if stdin is not None and tty is None and ws.subprotocol != V5:
            raise Refused(
                f"{session.name} is too old to send a stream to a pod", remedy="Kubernetes 1.30 or newer can", code=400
            )
        if stdin is not None:
            threading.Thread(target=_send, args=(ws, stdin, ws.subprotocol == V5), daemon=True).start()
        return _receive(ws, pod, {STDOUT: stdout, STDERR: stderr}, tty)


def _send(ws: WebSocket, stdin: BinaryIO, can_close: bool) -> None:
    read = getattr(stdin, "read1", stdin.read)  # sends what is typed in a terminal before the buffer is full
    with contextlib.suppress(*BROKEN):  # the command has ended
        while block := read(CHUNK_BYTES):
            ws.send_bytes(bytes([STDIN]) + block)
        if can_close:
            ws.send_bytes(bytes([CLOSE, STDIN]))


def _receive(
    ws: WebSocket,
    pod: str,
    outputs: dict[int, BinaryIO | None],
    tty: Callable[[], tuple[int, int]] | None,
) -> int:
    size: tuple[int, int] | None = None
    while True:
        if tty is not None and size != (current := tty()):
            size = current
            ws.send_bytes(bytes([RESIZE]) + json.dumps({"Width": size[0], "Height": size[1]}).encode())
        try:
            message = ws.receive_bytes(timeout=None if tty is None else 0.5)
        except TimeoutError:
            continue
        except BROKEN as e:
            raise ConnectionLost(f"the connection to pod {pod} broke off", remedy="Run it again") from e
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
    message = str(status.get("message"))
    refused = CannotExecute if NO_PROGRAM in message else Refused
    raise refused(f"pod {pod} cannot run it: {message}", remedy=f"See: kubectl describe pod {pod}", code=400)


@contextmanager
def _open(session: Session, url: str, pod: str, params: list[tuple[str, str]]) -> Iterator[WebSocket]:
    whole = str(httpx2.URL(session.server + url, params=params))
    with ExitStack() as stack:
        try:
            client = session.client
            try:
                ws = stack.enter_context(websocket(client, whole, (V5, V4)))
            except NoUpgrade as e:
                if e.response.status_code != UNAUTHORIZED:
                    raise
                session.log_in(rejected=client)
                ws = stack.enter_context(websocket(session.client, whole, (V5, V4)))
        except NoUpgrade as e:
            raise session.refused(e.response, verb="create", kind=EXEC, name=pod, namespace=None) from e
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as e:
            raise session.unreachable(e) from e
        yield ws
