"""The wires of the lab. All lie in the hosts' own network namespaces, except one that leads there from this machine."""

import ipaddress
import json
import os
import shutil
import subprocess
from pathlib import Path

from lab.host import Host
from lab.places import CONTROL, LAPTOP, LINK, NODES, PODS, RANGE, SERVICES
from stoker.spec.errors import UserError

BRIDGE = "lab"
WALL = ["unreachable", RANGE, "proto", "213"]
"""A packet for a pod must not leave by the default route. The number says that the route is the lab's own."""
FILTER = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
MODULE = "br_netfilter"


def lacks() -> str | None:
    """A service reaches a pod on the caller's own node only where iptables sees what crosses a bridge."""
    if FILTER.exists() or (shutil.which("modprobe") and _try("modprobe", "--dry-run", MODULE)):
        return None
    return f"the lab needs {MODULE} in the kernel"


def connect(control: Host, nodes: list[Host]) -> None:
    """A bridge in the control host, a wire from it to each node and to this machine."""
    if not FILTER.exists():
        _here("modprobe", MODULE)
        FILTER.write_text("0")  # this machine's own bridges go on as before
    _here("ip", "route", "add", *WALL)
    _in(control, "ip", "link", "set", "lo", "up")
    _in(control, "ip", "link", "add", BRIDGE, "type", "bridge")
    _in(control, "ip", "address", "add", f"{CONTROL}/24", "dev", BRIDGE)
    _in(control, "ip", "link", "set", BRIDGE, "up")
    _in(control, "sysctl", "-qw", "net.bridge.bridge-nf-call-iptables=0")
    for node in nodes:
        _wire(control, node.name, "eth0", node.pid)
        _in(node, "ip", "link", "set", "lo", "up")
        _in(node, "ip", "address", "add", f"{NODES[node.name]}/24", "dev", "eth0")
        _in(node, "ip", "link", "set", "eth0", "up")
        _in(node, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.bridge.bridge-nf-call-iptables=1")
        _in(node, "ip", "route", "add", SERVICES, "dev", "eth0")  # kube-proxy turns them round before they get there
    for host in [control, *nodes]:
        for name, pods in PODS.items():
            if name != host.name:
                _in(host, "ip", "route", "add", pods, "via", NODES[name])
    _wire(control, "laptop", LINK, os.getpid())
    _here("ip", "address", "add", f"{LAPTOP}/24", "dev", LINK)
    _here("ip", "link", "set", LINK, "up")


def disconnect() -> None:
    """What is left on this machine, if anything: the rest went with the hosts."""
    _try("ip", "link", "delete", "dev", LINK)
    _try("ip", "route", "delete", *WALL)


def check_free() -> None:
    lab = ipaddress.ip_network(RANGE)
    for route in json.loads(_here("ip", "-json", "-4", "route", "show", "table", "all")):
        where = "0.0.0.0/0" if route["dst"] == "default" else route["dst"]
        there = ipaddress.ip_network(where, strict=False)
        if there.prefixlen >= 8 and there.overlaps(lab):
            raise UserError(
                f"this machine has a route to {where}, which the lab would take ({RANGE})",
                remedy="Remove it, or run the lab on another machine",
            )


def _wire(control: Host, name: str, far: str, pid: int) -> None:
    _in(control, "ip", "link", "add", name, "type", "veth", "peer", "name", far, "netns", str(pid))
    _in(control, "ip", "link", "set", name, "master", BRIDGE, "up")


def _in(host: Host, *words: str) -> None:
    _here("nsenter", f"--target={host.pid}", "--net", "--", *words)


def _here(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def _try(*words: str) -> bool:
    return subprocess.run(words, capture_output=True).returncode == 0
