"""torch's key-value store, where the workers of a run find each other.

It has no authentication, and by itself listens on every address of the machine. Here it is served on the one address
that the workers use: by the first worker or, for a script of a user's own, by a process for that alone,
`python -m stoker.train.store ADDRESS PORT FD`.
"""

import os
import signal
import socket
import sys
from datetime import timedelta

from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from stoker.spec import contract


def meet(*, first: bool, world: int, timeout: timedelta) -> Store:
    """As a worker, of torchrun or of our supervisor: the first one serves the store, unless torchrun does."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if not first or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return TCPStore(address, port, world, is_master=False, timeout=timeout)
    listener = _listener(address, port)
    return TCPStore(address, port, world, is_master=True, timeout=timeout, master_listen_fd=listener.detach())


def _listener(address: str, port: int) -> socket.socket:
    """The one that the supervisor has opened, if it has."""
    if given := os.environ.pop(contract.ENV_STORE_FD, None):
        listener = socket.socket(fileno=int(given))
        listener.set_inheritable(False)
        return listener
    family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((address, port), family=family)


def main(address: str, port: int, fd: int) -> None:
    store = TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=fd)
    signal.pause()  # until the supervisor ends it
    del store


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
