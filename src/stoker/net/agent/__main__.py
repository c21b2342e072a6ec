"""`python3 -m stoker.net.agent`: the agent in a pod. It answers each line of JSON with another.

Only the standard library is imported: it has to start fast beside workers that use every core.
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

from stoker.backends.local import rdma
from stoker.net.agent import host
from stoker.net.agent.links import Server, link
from stoker.net.agent.reach import in_parallel, port_state, resolved, unanswered

Message = dict[str, Any]
LIFETIME_S = 600  # then it ends, in case the client died without closing the connection
PREFLIGHT = "stoker.train.preflight"
PREFLIGHT_TIMEOUT_S = 300.0  # importing torch alone may take a minute from a slow disk
LOOKUPS = "timeout:3 attempts:2"  # glibc waits 10 seconds for a silent server, and again for each search domain


class ProbeAgent:
    """Its sockets listen as long as it exists."""

    def __init__(self) -> None:
        self._token = ""
        self._servers: list[Server] = []

    def begin(self, *, token: str, address: str, ports: list[int], env: dict[str, str]) -> Message:
        """Listens on `ports` and on one that the system chooses, as it does for collectives. Reports on this host."""
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
        return in_parallel(resolved, names, seconds=seconds, late=lambda name: unanswered(name, seconds))

    def ports(self, *, targets: list[tuple[str, int]], seconds: float) -> list[str]:
        return in_parallel(lambda target: port_state(*target), targets, seconds=seconds, late=lambda _: "dropped")

    def link(self, *, address: str, port: int, seconds: float) -> Message:
        return link(address, port, self._token, seconds=seconds)

    def talks(self, *, peers: list[str]) -> list[str]:
        return host.used_addresses(set(peers))

    def preflight(self, *, args: list[str]) -> Message:
        argv = [sys.executable, "-P", "-m", PREFLIGHT, *args]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=PREFLIGHT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return {"error": f"no answer within {PREFLIGHT_TIMEOUT_S:.0f} seconds"}
        with contextlib.suppress(ValueError, IndexError):
            result: Message = json.loads(done.stdout.splitlines()[-1])
            return result
        errors = done.stderr.strip().splitlines()
        return {"error": errors[-1] if errors else f"the preflight ended with code {done.returncode}"}


def main(lifetime_s: int = LIFETIME_S) -> None:
    signal.alarm(lifetime_s)
    os.environ.setdefault("RES_OPTIONS", LOOKUPS)
    agent = ProbeAgent()
    verbs: dict[str, Callable[..., Any]] = {
        "begin": agent.begin,
        "names": agent.names,
        "ports": agent.ports,
        "link": agent.link,
        "talks": agent.talks,
        "preflight": agent.preflight,
    }
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"answer": verbs[request.pop("verb")](**request)}
        except OSError as e:
            answer = {"error": str(e)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
