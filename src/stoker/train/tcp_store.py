"""torch's key-value store, through which the workers of a run find each other.

torch's store has no authentication and by default listens on every address of the machine. Here it listens only on the
address that the workers use. The first worker serves it or, for a user's own script, a process of its own:
`python -m stoker.train.tcp_store ADDRESS PORT FD`.
"""

import os
import signal
import socket
import sys
from datetime import timedelta

from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from stoker.spec import contract


def connect_store(*, serve: bool, world: int, timeout: timedelta) -> Store:
    """For a worker of torchrun or of our supervisor; `serve` it as well, unless torchrun does."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if not serve or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return TCPStore(address, port, world, is_master=False, timeout=timeout)
    listener = _listener(address, port)
    return TCPStore(address, port, world, is_master=True, timeout=timeout, master_listen_fd=listener.detach())


def _listener(address: str, port: int) -> socket.socket:
    """The socket that the supervisor has opened, else a new socket."""
    if inherited := os.environ.pop(contract.ENV_STORE_FD, None):
        listener = socket.socket(fileno=int(inherited))
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
