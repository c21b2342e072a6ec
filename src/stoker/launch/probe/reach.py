"""Whether a name and a port can be reached from here, and if not, in which way."""

import errno
import socket
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

CONNECT = 2.0  # seconds: the first packet is sent again after one, and a cluster's network answers in milliseconds
AT_ONCE = 32
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


def side_by_side(ask: Callable[[A], B], about: Iterable[A]) -> list[B]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(ask, about))
