"""Whether a name and a port can be reached from here, and if not, in which way."""

import errno
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

CONNECT = 2.0  # seconds: the first packet is sent again after one, and a cluster's network answers in milliseconds
AT_ONCE = 64
UNREACHABLE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EPERM)
A = TypeVar("A")
B = TypeVar("B")


def port_state(address: str, port: int) -> str:
    """open; refused: it came there, and nobody listens or a rule says no; dropped: no answer; unreachable: no way."""
    try:
        with socket.create_connection((address, port), timeout=CONNECT):
            return "open"
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return "dropped"
    except OSError as e:
        return "unreachable" if e.errno in UNREACHABLE else f"{e.strerror or e}"


def resolved(name: str) -> dict[str, Any]:
    """Its addresses; or why none: unknown (there is an answer, and it is no), silent (there is no answer)."""
    began = time.monotonic()
    try:
        found = sorted({str(one[4][0]) for one in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})
        why = ""
    except socket.gaierror as e:
        found, why = [], "silent" if e.errno == socket.EAI_AGAIN else "unknown"
    except UnicodeError:
        found, why = [], "unknown"
    return {"name": name, "addresses": found, "error": why, "ms": 1000 * (time.monotonic() - began)}


def unanswered(name: str, seconds: float) -> dict[str, Any]:
    return {"name": name, "addresses": [], "error": "silent", "ms": 1000 * seconds}


def side_by_side(ask: Callable[[A], B], about: Iterable[A], *, seconds: float, late: Callable[[A], B]) -> list[B]:
    """The answers in order; `late` for what has none in time: a lookup cannot be ended, and is left behind."""
    some, found, end = list(about), dict[int, B](), time.monotonic() + seconds
    turns: queue.SimpleQueue[int] = queue.SimpleQueue()
    for at in range(len(some)):
        turns.put(at)

    def work() -> None:
        while time.monotonic() < end:
            try:
                at = turns.get_nowait()
            except queue.Empty:
                return
            found[at] = ask(some[at])

    threads = [threading.Thread(target=work, daemon=True) for _ in some[:AT_ONCE]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    answers = dict(found)
    return [answers[at] if at in answers else late(one) for at, one in enumerate(some)]
