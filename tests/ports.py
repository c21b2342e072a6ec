"""A port for a server that starts some seconds from now.

The port is not one that the system assigns by itself: another process could get it meanwhile. A server may listen on
all addresses, so the port must be free on each of them.
"""

import errno
import random
import socket
from contextlib import suppress
from pathlib import Path

PORTS = range(15000, 29000)  # node ports of Kubernetes start at 30000, ports that Linux assigns at 32768
TRIES = 50


def free_port(address: str) -> int:
    family = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0][0]
    assigned = _assigned()
    for port in [*(port for port in random.sample(PORTS, TRIES) if port not in assigned), 0]:
        with socket.socket(family) as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
            free: int = probe.getsockname()[1]
            return free
    raise OSError(errno.EADDRINUSE, "no port is free")


def _assigned() -> range:
    """The ports that the system assigns to a socket that asks for any port."""
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except OSError:
        return range(0)
    return range(int(low), int(high) + 1)
