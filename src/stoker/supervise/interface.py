"""Which network interface the collectives of workers use: gloo and NCCL listen there, without authentication."""

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


def variables(address: str, *, nodes: int, given: Mapping[str, str]) -> dict[str, str]:
    """For workers of a node that its peers reach at this address. Loopback when it has no peers, whatever is given.

    By itself gloo takes what the host's name resolves to, and NCCL any interface but loopback.
    """
    if nodes == 1:
        name = _loopback()
        return {GLOO: name, NCCL: f"={name}"} if name else {}
    name = None if GLOO in given else interface_of(address)
    return {GLOO: name} if name else {}


def interface_of(address: str) -> str | None:
    """None when no interface has it as its first, which gloo would use."""
    with suppress(OSError):
        found = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0][4][0]
        ip = ipaddress.ip_address(str(found).partition("%")[0])
        if ip.is_loopback:
            return _loopback()
        return next((name for _, name in socket.if_nameindex() if ip in _addresses(name)), None)
    return None


def _loopback() -> str | None:
    return next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)


def _addresses(name: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Its first of IPv4, and all of IPv6."""
    found: list[ipaddress.IPv4Address | ipaddress.IPv6Address] = []
    if sys.platform == "linux":
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            answer = fcntl.ioctl(any_socket, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            found.append(ipaddress.IPv4Address(answer[20:24]))
        with suppress(OSError):
            lines = [line.split() for line in IPV6_ADDRESSES.read_text().splitlines()]
            found += [ipaddress.IPv6Address(int(words[0], 16)) for words in lines if words[5] == name]
    return found
