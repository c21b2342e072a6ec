"""Machines with a network of their own on this kernel: namespaces, wired to one bridge, with a DNS server beside it."""

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stoker.net import measure
from stoker.net.agent_client import AgentClient
from stoker.net.measure import probe
from stoker.net.survey import NetworkSurvey, Site
from stoker.spec import contract
from tests.needing import root_with
from tests.net.piped import Piped
from tests.waiting import PATIENCE_S

HOSTS = 4
NET = "10.99.0"
OWN_DNS = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'  # `ip netns exec` has mounts of its own
CLUSTER_NAME = "cluster.test"
DNS_SERVER = Path(__file__).parent / "dns_server.py"


class Wires:
    """Hosts 0 to 3, each a namespace with eth0 at 10.99.0.(10 + number)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bridge = f"stoker-{uuid.uuid4().hex[:8]}"
        self._names = [f"{self._bridge}-{number}" for number in range(HOSTS)]

    def up(self) -> None:
        ip("netns", "add", self._bridge)
        self.bridge("ip", "link", "set", "lo", "up")
        # By itself a bridge takes the lowest address of its wires: one more would make the neighbours forget it.
        self.bridge("ip", "link", "add", "wires", "address", "02:00:00:00:00:01", "type", "bridge")
        self.bridge("ip", "address", "add", f"{NET}.1/24", "dev", "wires")
        self.bridge("ip", "link", "set", "wires", "up")
        for number, name in enumerate(self._names):
            ip("netns", "add", name)
            self.host(number, "ip", "link", "set", "lo", "up")
            self.wire(number, "eth0", f"{self.address(number)}/24")
        (self._folder / "resolv.conf").write_text(f"nameserver {NET}.1\n")

    def down(self) -> None:
        for name in [*self._names, self._bridge]:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)

    def wire(self, number: int, face: str, address: str) -> None:
        """Adds a wire from a host to the bridge."""
        near = f"{face}-{number}"
        self.bridge("ip", "link", "add", near, "type", "veth", "peer", "name", face, "netns", self._names[number])
        self.bridge("ip", "link", "set", near, "master", "wires", "up")
        self.host(number, "ip", "address", "add", address, "dev", face)
        self.host(number, "ip", "link", "set", face, "up")

    def address(self, number: int) -> str:
        return f"{NET}.{10 + number}"

    def bridge(self, *arguments: str) -> None:
        ip("netns", "exec", self._bridge, *arguments)

    def host(self, number: int, *arguments: str) -> None:
        ip("netns", "exec", self._names[number], *arguments)

    @contextmanager
    def blocked(self, number: int, *rule: str) -> Iterator[None]:
        self.host(number, "iptables", "-A", *rule)
        try:
            yield
        finally:
            self.host(number, "iptables", "-D", *rule)

    def survey(
        self, *, hosts: int = HOSTS, addresses: Callable[[int], str] | None = None, env: dict[str, str] | None = None
    ) -> NetworkSurvey:
        """As `stoker net` makes it, from agents as in temporary pods."""
        address = addresses or self.address
        agents = [
            AgentClient(
                Site(pod=f"pod-{n}", machine=f"node-{n}", address=address(n), names=(f"pod-{n}.test",)), self._agent(n)
            )
            for n in range(hosts)
        ]
        try:
            return probe(
                agents,
                token="secret",
                port=contract.NODES_PORT,
                live=False,
                nodes=hosts,
                env=env or {},
                cluster_name=CLUSTER_NAME,
            )
        finally:
            for agent in agents:
                agent.close()

    def _agent(self, number: int) -> Piped:
        argv = ["ip", "netns", "exec", self._names[number], "sh", "-c", OWN_DNS, str(self._folder / "resolv.conf")]
        return Piped(
            subprocess.Popen(
                [*argv, sys.executable, "-P", "-m", "stoker.net.agent"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        )

    @contextmanager
    def dns(self) -> Iterator[None]:
        """A server at the bridge that knows every host."""
        known = [f"pod-{n}.test={self.address(n)}" for n in range(HOSTS)] + [f"{CLUSTER_NAME}={NET}.1"]
        argv = ["ip", "netns", "exec", self._bridge, sys.executable, str(DNS_SERVER), f"{NET}.1", *known]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            server.stdout.readline()
            try:
                yield
            finally:
                server.kill()


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent is a Python process, and starts slowly on a machine that runs other tests."""
    monkeypatch.setattr(measure, "START_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(measure, "PROBE_S", PATIENCE_S)


@pytest.fixture(scope="module")
def wires(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wires]:
    root_with("ip", "iptables", "tc")
    wires = Wires(tmp_path_factory.mktemp("wires"))
    try:
        wires.up()
        with wires.dns():
            yield wires
    finally:
        wires.down()
