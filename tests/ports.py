"""A port for a server that starts some seconds from now.

One that the system picks is free now, but may be given to anybody else meanwhile. A server may listen on all addresses,
so the port must be free on each of them.
"""

import errno
import random
import socket
from contextlib import suppress
from pathlib import Path

PORTS = range(15000, 29000)  # Kubernetes' node ports begin at 30000, what Linux gives out at 32768
TRIES = 50


def free_port(address: str) -> int:
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
    """Ports that the system gives to whoever asks for any: another may get one of them before our server is there."""
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except OSError:
        return range(0)
    return range(int(low), int(high) + 1)
