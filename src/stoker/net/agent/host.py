"""The network of this machine or pod: interfaces, ports, connections, and the variables that choose between them."""

import fcntl
import ipaddress
import os
import socket
import struct
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stoker.spec import contract

PROC, NET = Path("/proc"), Path("/sys/class/net")
NETWORK_VARIABLES = ("NCCL_", "GLOO_", "FI_", "TP_SOCKET", "CCOM_", "OFI_")
SIOCGIFCONF, IFREQ_BYTES = 0x8912, 40  # the ioctl that lists IPv4 addresses, and the size of each entry
MOST_ADDRESSES = 256
PARENT, STARTED = 0, 18  # indices of the numbers in /proc/PID/stat
ESTABLISHED, LISTENS = "01", "0A"  # states in /proc/net/tcp


def interfaces() -> list[dict[str, Any]]:
    addresses: dict[str, list[str]] = {name: [] for _, name in socket.if_nameindex()}
    for name, address in (*_ipv4(), *_ipv6()):
        addresses.setdefault(name, []).append(address)
    return [
        {"name": name, "addresses": assigned, "mtu": _mtu(name)}
        for name, assigned in addresses.items()
        if not _is_down(name)
    ]


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """The network variables that workers are started with: the container's, overridden by the run's own."""
    return {name: value for name, value in sorted((os.environ | own).items()) if name.startswith(NETWORK_VARIABLES)}


def listening_ports() -> list[int]:
    return sorted({port for state, (_, port), _ in _connections() if state == LISTENS})


def used_addresses(peers: set[str]) -> list[str]:
    """Own addresses of established connections to one of `peers`."""
    return sorted({own for state, (own, _), (other, _) in _connections() if state == ESTABLISHED and other in peers})


def workers() -> dict[str, int]:
    """How many run here, how many hold an RDMA device (themselves or a child), and whether they have logged a step."""
    ranked = {int(path.name): path for path in PROC.glob("[0-9]*") if _run_dir(path)}
    parents = {pid: _numbers(path)[PARENT] for pid, path in ranked.items()}

    def root(pid: int) -> int:
        """The worker itself: its children inherit its environment, and so its rank."""
        return root(parents[pid]) if parents[pid] in parents else pid

    roots = {root(pid) for pid in ranked}
    holders = {root(pid) for pid, path in ranked.items() if any("/infiniband/uverbs" in file for file in _files(path))}
    return {
        "running": len(roots),
        "rdma": len(holders),
        "stepped": int(any(_has_stepped(ranked[pid]) for pid in roots)),
    }


def _run_dir(process: Path) -> str:
    """The run directory of a worker; empty for any other process."""
    try:
        variables = (process / "environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""  # it has ended, or belongs to another user
    environ = dict(variable.split("=", 1) for variable in variables if "=" in variable)
    return environ.get(contract.ENV_RUN_DIR, "") if "RANK" in environ else ""


def _has_stepped(process: Path) -> bool:
    """It has logged a step since it started; an earlier attempt may have logged as well."""
    try:
        logged = (Path(_run_dir(process)) / contract.METRICS_FILE).stat().st_mtime
        booted = next(line for line in (PROC / "stat").read_text().splitlines() if line.startswith("btime "))
    except (OSError, StopIteration):
        return False
    return logged > int(booted.split()[1]) + _numbers(process)[STARTED] / os.sysconf("SC_CLK_TCK")


def _numbers(process: Path) -> list[int]:
    try:
        numbers = (process / "stat").read_text().rsplit(")", 1)[1].split()[1:]  # the name before may hold brackets
    except OSError:
        return [0] * (STARTED + 1)  # it has ended
    return [int(number) for number in numbers]


def _files(process: Path) -> Iterator[str]:
    for path in (process / "fd").glob("*"):
        try:
            yield os.readlink(path)
        except OSError:
            continue


def _ipv4() -> Iterator[tuple[str, str]]:
    buffer = array("B", bytes(IFREQ_BYTES * MOST_ADDRESSES))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("iP", len(buffer), buffer.buffer_info()[0])
        size, _ = struct.unpack("iP", fcntl.ioctl(any_socket, SIOCGIFCONF, request))
    for start in range(0, size, IFREQ_BYTES):
        name = buffer[start : start + 16].tobytes().split(b"\0")[0].decode()
        yield name.partition(":")[0], socket.inet_ntoa(buffer[start + 20 : start + 24].tobytes())


def _ipv6() -> Iterator[tuple[str, str]]:
    try:
        lines = (PROC / "net" / "if_inet6").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        columns = line.split()
        yield columns[5], str(ipaddress.IPv6Address(int(columns[0], 16)))


def _mtu(name: str) -> int:
    try:
        return int((NET / name / "mtu").read_text())
    except (OSError, ValueError):
        return 0


def _is_down(name: str) -> bool:
    try:
        return (NET / name / "operstate").read_text().strip() == "down"
    except OSError:
        return False


def _connections() -> Iterator[tuple[str, tuple[str, int], tuple[str, int]]]:
    """State, own end and other end of every TCP socket in this network namespace."""
    for name in ("tcp", "tcp6"):
        try:
            lines = (PROC / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            yield columns[3], _end(columns[1]), _end(columns[2])


def _end(text: str) -> tuple[str, int]:
    """From `0100007F:7348`: each group of four bytes is in the machine's byte order."""
    digits, port = text.split(":")
    groups = (int(digits[at : at + 8], 16) for at in range(0, len(digits), 8))
    packed = b"".join(group.to_bytes(4, "little") for group in groups)
    address = ipaddress.ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address), int(port, 16)
