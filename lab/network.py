"""The network of the lab. It is in the hosts' network namespaces, except for one interface of this machine."""

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
UNREACHABLE_ROUTE = ["unreachable", RANGE, "proto", "213"]
"""Keeps packets for pods from leaving through the default route. The protocol number marks the route as the lab's."""
FILTER = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
MODULE = "br_netfilter"


def unsupported() -> str | None:
    """Return why the network cannot be created, or None. Services need iptables to see bridged packets."""
    if FILTER.exists() or (shutil.which("modprobe") and _succeeds("modprobe", "--dry-run", MODULE)):
        return None
    return f"the lab needs {MODULE} in the kernel"


def connect(control: Host, nodes: list[Host]) -> None:
    """Create a bridge in the control host, and a veth pair from it to each node and to this machine."""
    if not FILTER.exists():
        _run("modprobe", MODULE)
        FILTER.write_text("0")  # do not change this machine's own bridges
    _run("ip", "route", "add", *UNREACHABLE_ROUTE)
    _run_in(control, "ip", "link", "set", "lo", "up")
    _run_in(control, "ip", "link", "add", BRIDGE, "type", "bridge")
    _run_in(control, "ip", "address", "add", f"{CONTROL}/24", "dev", BRIDGE)
    _run_in(control, "ip", "link", "set", BRIDGE, "up")
    _run_in(control, "sysctl", "-qw", "net.bridge.bridge-nf-call-iptables=0")
    for node in nodes:
        _veth(control, node.name, "eth0", node.pid)
        _run_in(node, "ip", "link", "set", "lo", "up")
        _run_in(node, "ip", "address", "add", f"{NODES[node.name]}/24", "dev", "eth0")
        _run_in(node, "ip", "link", "set", "eth0", "up")
        _run_in(node, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.bridge.bridge-nf-call-iptables=1")
        _run_in(node, "ip", "route", "add", SERVICES, "dev", "eth0")  # kube-proxy redirects them before they leave
    for host in [control, *nodes]:
        for name, pods in PODS.items():
            if name != host.name:
                _run_in(host, "ip", "route", "add", pods, "via", NODES[name])
    _veth(control, "laptop", LINK, os.getpid())
    _run("ip", "address", "add", f"{LAPTOP}/24", "dev", LINK)
    _run("ip", "link", "set", LINK, "up")


def disconnect() -> None:
    """Remove the interface and route on this machine; everything else ends with the hosts."""
    _succeeds("ip", "link", "delete", "dev", LINK)
    _succeeds("ip", "route", "delete", *UNREACHABLE_ROUTE)


def check_free() -> None:
    lab = ipaddress.ip_network(RANGE)
    for route in json.loads(_run("ip", "-json", "-4", "route", "show", "table", "all")):
        destination = "0.0.0.0/0" if route["dst"] == "default" else route["dst"]
        other = ipaddress.ip_network(destination, strict=False)
        if other.prefixlen >= 8 and other.overlaps(lab):
            raise UserError(
                f"this machine has a route to {destination}, which the lab needs ({RANGE})",
                remedy="Remove it, or run the lab on another machine",
            )


def _veth(control: Host, name: str, peer: str, pid: int) -> None:
    _run_in(control, "ip", "link", "add", name, "type", "veth", "peer", "name", peer, "netns", str(pid))
    _run_in(control, "ip", "link", "set", name, "master", BRIDGE, "up")


def _run_in(host: Host, *command: str) -> None:
    _run("nsenter", f"--target={host.pid}", "--net", "--", *command)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True).returncode == 0
