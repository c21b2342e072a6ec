"""The wires of the lab. All lie in the hosts' own network namespaces, except one that leads there from this machine."""

import ipaddress
import json
import os
import subprocess

from lab.host import Host
from lab.places import CONTROL, LAPTOP, LINK, NODES, PODS, RANGE, SERVICES
from stoker.spec.errors import UserError

BRIDGE = "lab"


def connect(control: Host, nodes: list[Host]) -> None:
    """A bridge in the control host, a wire from it to each node and to this machine."""
    check_free()
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
    _here("ip", "route", "add", "unreachable", RANGE)  # a packet for a pod must not leave by the default route


def disconnect() -> None:
    """What is left on this machine: the rest went with the hosts."""
    if LINK in _here("ip", "-oneline", "link", "show"):
        _here("ip", "link", "delete", LINK)
    while "unreachable" in _here("ip", "route", "show", "type", "unreachable", RANGE):
        _here("ip", "route", "delete", "unreachable", RANGE)


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
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout
