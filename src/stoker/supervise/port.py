"""Where the workers of an attempt meet.

A port that the system picks is free now, but may be given to anybody else in the seconds that the worker of rank 0
needs to get there; and he listens at all addresses, so that a port is taken for him when it is at any of them.
"""

import errno
import random
import socket
from contextlib import suppress
from pathlib import Path

PORTS = range(15000, 29000)  # Kubernetes' node ports begin at 30000, what Linux gives out at 32768
TRIES = 50


def free_port(address: str) -> int:
    """One where the worker of rank 0 will listen, at all addresses, some seconds from now."""
    family = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0][0]
    given_out = _given_out()
    for port in [*(port for port in random.sample(PORTS, TRIES) if port not in given_out), 0]:
        with socket.socket(family) as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
            found: int = probe.getsockname()[1]
            return found
    raise OSError(errno.EADDRINUSE, "no port is free")


def _given_out() -> range:
    """Ports that the system gives to whoever asks for any: another may get one of them before our worker is there."""
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except OSError:
        return range(0)
    return range(int(low), int(high) + 1)
