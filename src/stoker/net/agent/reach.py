"""Whether names resolve and ports can be reached from here, and if not, how they fail."""

import errno
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

CONNECT_TIMEOUT_S = 2.0  # TCP sends the first packet again after one; a cluster's network answers in milliseconds
MAX_THREADS = 64
UNREACHABLE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EPERM)
A = TypeVar("A")
B = TypeVar("B")


def port_state(address: str, port: int) -> str:
    """open; refused: no process listens, or a firewall rejects; dropped: no answer; unreachable: no route."""
    try:
        with socket.create_connection((address, port), timeout=CONNECT_TIMEOUT_S):
            return "open"
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return "dropped"
    except OSError as e:
        return "unreachable" if e.errno in UNREACHABLE else f"{e.strerror or e}"


def resolved(name: str) -> dict[str, Any]:
    """Its addresses, or an error: unknown (the server does not know it) or silent (no server answers)."""
    began = time.monotonic()
    try:
        addresses = sorted({str(info[4][0]) for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})
        error = ""
    except socket.gaierror as e:
        addresses, error = [], "silent" if e.errno == socket.EAI_AGAIN else "unknown"
    except UnicodeError:
        addresses, error = [], "unknown"
    return {"name": name, "addresses": addresses, "error": error, "ms": 1000 * (time.monotonic() - began)}


def unanswered(name: str, seconds: float) -> dict[str, Any]:
    return {"name": name, "addresses": [], "error": "silent", "ms": 1000 * seconds}


def in_parallel(ask: Callable[[A], B], items: Iterable[A], *, seconds: float, late: Callable[[A], B]) -> list[B]:
    """The answers in order; `late(item)` for those that take too long. A lookup cannot be cancelled."""
    todo, done, end = list(items), dict[int, B](), time.monotonic() + seconds
    indices: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in range(len(todo)):
        indices.put(index)

    def work() -> None:
        while time.monotonic() < end:
            try:
                index = indices.get_nowait()
            except queue.Empty:
                return
            done[index] = ask(todo[index])

    threads = [threading.Thread(target=work, daemon=True) for _ in todo[:MAX_THREADS]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    answers = dict(done)
    return [answers[index] if index in answers else late(item) for index, item in enumerate(todo)]
