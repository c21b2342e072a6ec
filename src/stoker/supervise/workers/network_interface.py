"""Chooses the network interface for the workers' collectives: gloo and NCCL listen there, without authentication."""

import fcntl
import ipaddress
import socket
import struct
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
SIOCGIFADDR = 0x8915  # Linux: the first IPv4 address of an interface
IPV6_ADDRESSES = Path("/proc/net/if_inet6")


def interface_variables(address: str, *, nodes: int, environment: Mapping[str, str]) -> dict[str, str]:
    """For workers of a node that its peers reach at this address. A single node always uses loopback.

    By default gloo takes the address that the host's name resolves to, and NCCL any interface but loopback.
    """
    if nodes == 1:
        name = _loopback()
        return {GLOO: name, NCCL: f"={name}"} if name else {}
    name = None if GLOO in environment else interface_of(address)
    return {GLOO: name} if name else {}


def interface_of(address: str) -> str | None:
    """The interface whose first address this is: gloo would use it. None if there is no such interface."""
    with suppress(OSError):
        resolved = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0][4][0]
        ip = ipaddress.ip_address(str(resolved).partition("%")[0])
        if ip.is_loopback:
            return _loopback()
        return next((name for _, name in socket.if_nameindex() if ip in _addresses(name)), None)
    return None


def _loopback() -> str | None:
    return next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)


def _addresses(name: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """The first IPv4 address and all IPv6 addresses of an interface."""
    addresses: list[ipaddress.IPv4Address | ipaddress.IPv6Address] = []
    if sys.platform == "linux":
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            answer = fcntl.ioctl(any_socket, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            addresses.append(ipaddress.IPv4Address(answer[20:24]))
        with suppress(OSError):
            rows = [line.split() for line in IPV6_ADDRESSES.read_text().splitlines()]
            addresses += [ipaddress.IPv6Address(int(row[0], 16)) for row in rows if row[5] == name]
    return addresses
