"""`python3 -m stoker.launch.probe`: the agent in a pod. It answers each JSON line with another.

Only the standard library is imported: it has to start fast beside workers that need the processor.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from stoker.launch.probe import host, rdma
from stoker.launch.probe.links import Server, link
from stoker.launch.probe.reach import port_state, resolved, side_by_side, unanswered

Message = dict[str, Any]
LIVES = 600  # seconds, and no longer, also when nobody tells it that the one who asked is gone
PREFLIGHT = "stoker.train.preflight"
PREFLIGHT_PATIENCE = 300.0  # seconds: torch alone may take a minute to be read from a slow disk
LOOKUPS = "timeout:3 attempts:2"  # glibc asks a silent server for 10 seconds, and again for each search domain


class Agent:
    """Its listening sockets live as long as it does."""

    def __init__(self) -> None:
        self._token = ""
        self._servers: list[Server] = []

    def begin(self, *, token: str, address: str, ports: list[int], env: dict[str, str]) -> Message:
        """`ports`: beside one that the system chooses, as it does for collectives."""
        self._token = token
        self._servers = [Server(address, port, token) for port in (0, *ports)]
        return {
            "port": self._servers[0].port,
            "hostname": socket.gethostname(),
            "interfaces": host.interfaces(),
            "listens": host.listening_ports(),
            "environment": host.environment(env),
            "fabric": rdma.look(),
            "workers": host.workers(),
        }

    def names(self, *, names: list[str], seconds: float) -> list[Message]:
        return side_by_side(resolved, names, seconds=seconds, late=lambda name: unanswered(name, seconds))

    def ports(self, *, targets: list[tuple[str, int]], seconds: float) -> list[str]:
        return side_by_side(lambda target: port_state(*target), targets, seconds=seconds, late=lambda _: "dropped")

    def link(self, *, address: str, port: int, seconds: float) -> Message:
        return link(address, port, self._token, seconds=seconds)

    def talks(self, *, peers: list[str]) -> list[str]:
        return host.used_addresses(set(peers))

    def preflight(self, *, words: list[str]) -> Message:
        argv = [sys.executable, "-P", "-m", PREFLIGHT, *words]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=PREFLIGHT_PATIENCE)
        except subprocess.TimeoutExpired:
            return {"error": f"no answer within {PREFLIGHT_PATIENCE:.0f} seconds"}
        with contextlib.suppress(ValueError, IndexError):
            found: Message = json.loads(done.stdout.splitlines()[-1])
            return found
        said = done.stderr.strip().splitlines()
        return {"error": said[-1] if said else f"it ended with code {done.returncode}"}


def main(lives: int = LIVES) -> None:
    signal.alarm(lives)
    os.environ.setdefault("RES_OPTIONS", LOOKUPS)
    agent = Agent()
    verbs: dict[str, Callable[..., Any]] = {
        "begin": agent.begin,
        "names": agent.names,
        "ports": agent.ports,
        "link": agent.link,
        "talks": agent.talks,
        "preflight": agent.preflight,
    }
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = {"answer": verbs[asked.pop("verb")](**asked)}
        except OSError as e:
            answer = {"error": str(e)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
