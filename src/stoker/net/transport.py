"""Which interface and which transport the workers of a pod use, from the report of its agent. Pure."""

import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from stoker.net.survey import Host, Interface, SurveyPlace

NCCL_LAST_CHOICE = ("lo", "docker")  # NCCL uses them only when there is no other interface
DEFAULT_PLACE = SurveyPlace()
NAMES = {"efa": "EFA", "InfiniBand": "InfiniBand", "Ethernet": "RoCE"}


@dataclass(frozen=True, kw_only=True, slots=True)
class TransportFault:
    """A problem of one pod, without the pod's name."""

    problem: str
    remedy: str


def transport(host: Host) -> str:
    """The transport of collectives between GPUs: TCP unless something better exists and is really used."""
    kind = _requested(host)
    return "TCP" if kind is None or fallback(host) else kind


def fallback(host: Host, place: SurveyPlace = DEFAULT_PLACE) -> TransportFault | None:
    """Why a pod with EFA or InfiniBand silently uses TCP."""
    kind = _requested(host)
    if kind is None:
        return None
    env, devices, workers = host.environment, host.fabric["devices"], host.workers
    back = f"falls back from {kind} to TCP"
    if not devices or not host.fabric["given"]:
        return TransportFault(
            problem=f"{back}: it asks for {kind} and has no such device",
            remedy=f"Check that the device plugin runs on its node: {place.anywhere} -n kube-system get pods",
        )
    if env.get("NCCL_NET", "").lower() == "socket" or env.get("NCCL_NET_PLUGIN") == "none":
        name = "NCCL_NET" if "NCCL_NET" in env else "NCCL_NET_PLUGIN"
        return TransportFault(problem=f"{back}: {name} is {env[name]}", remedy=f"Take {name} out of env")
    if fault := _efa_fault(host, place) if kind == "EFA" else _infiniband_fault(host):
        return TransportFault(problem=f"{back}: {fault.problem}", remedy=fault.remedy)
    if workers["running"] and not workers["rdma"] and workers["stepped"]:  # before the first step NCCL may be idle
        return TransportFault(
            problem=f"{back}: its {workers['running']} workers are training, and none has opened a device",
            remedy=f"Read what NCCL reports: {place.again} env.NCCL_DEBUG=INFO, then: stoker logs {place.run}",
        )
    return None


def wrong_interfaces(host: Host, reached_by: Iterable[str]) -> Iterator[TransportFault]:
    """`reached_by`: the interfaces that the probe's connections from this pod went through."""
    interfaces = {interface.name: interface for interface in host.interfaces}
    used = sorted({name for name in reached_by if name in interfaces})
    talking = {
        interface.name for interface in host.interfaces for address in interface.addresses if address in host.talks
    }
    good = next((name for name in used if not is_link_local(interfaces[name])), "eth0")
    for name in sorted({*used, *talking}):
        if is_link_local(interfaces[name]):
            addresses = ", ".join(interfaces[name].addresses)
            yield TransportFault(
                problem=f"reaches other pods through {name} ({addresses}), a link-local interface",
                remedy=_set(host, good if good != name else "eth0"),
            )
            return
    yield from _gloo(host, interfaces, used, good)
    yield from _nccl(host, interfaces, used, good)


def is_link_local(interface: Interface) -> bool:
    """All its IPv4 addresses are link-local. Every interface has a link-local IPv6 address as well."""
    addresses = [ipaddress.ip_address(text) for text in interface.addresses]
    ipv4 = [address for address in addresses if address.version == 4]
    return bool(ipv4) and all(address.is_link_local for address in ipv4)


def nccl_choice(value: str | None, interfaces: Iterable[Interface]) -> list[str]:
    """The interfaces that NCCL_SOCKET_IFNAME allows: `eth,ens` are prefixes, `=eth0` a whole name, `^lo` all others."""
    names = [interface.name for interface in interfaces if interface.addresses]
    if not value:
        fast = [name for name in names if name.startswith("ib")]
        return fast or [name for name in names if not name.startswith(NCCL_LAST_CHOICE)] or names
    others, exact = value.startswith("^"), value.lstrip("^").startswith("=")
    parts = tuple(part for part in value.lstrip("^=").split(",") if part)
    chosen = [name for name in names if (name in parts if exact else name.startswith(parts))]
    return [name for name in names if name not in chosen] if others else chosen


def _gloo(host: Host, interfaces: dict[str, Interface], used: list[str], good: str) -> Iterator[TransportFault]:
    value = host.environment.get("GLOO_SOCKET_IFNAME")
    if not value:
        return
    names = value.split(",")
    if missing := [name for name in names if name not in interfaces]:
        yield _missing("GLOO_SOCKET_IFNAME", missing[0], interfaces, good)
    elif used and not set(names) & set(used):
        yield _not_used("GLOO_SOCKET_IFNAME", value, used, good)


def _nccl(host: Host, interfaces: dict[str, Interface], used: list[str], good: str) -> Iterator[TransportFault]:
    """In a pod without a GPU, only where the variable is set."""
    value = host.environment.get("NCCL_SOCKET_IFNAME")
    if not value and host.fabric["plugin"] is None:
        return
    chosen = nccl_choice(value, interfaces.values())
    setting = f"NCCL_SOCKET_IFNAME is {value}" if value else "NCCL_SOCKET_IFNAME is not set"
    remedy = f"Launch with env.NCCL_SOCKET_IFNAME={good}"
    if not chosen:
        yield _missing("NCCL_SOCKET_IFNAME", str(value), interfaces, good)
    elif local := [name for name in chosen if is_link_local(interfaces[name])]:
        yield TransportFault(problem=f"may use {local[0]}, a link-local interface: {setting}", remedy=remedy)
    elif used and not set(chosen) & set(used):
        yield _not_used("NCCL_SOCKET_IFNAME", str(value), used, good)


def _missing(variable: str, name: str, interfaces: dict[str, Interface], good: str) -> TransportFault:
    return TransportFault(
        problem=f"has no interface for {variable}={name}; it has {', '.join(interfaces)}",
        remedy=f"Launch with env.{variable}={good}",
    )


def _not_used(variable: str, value: str, used: list[str], good: str) -> TransportFault:
    return TransportFault(
        problem=f"reaches the others through {', '.join(used)}, but {variable} is {value}",
        remedy=f"Launch with env.{variable}={good}",
    )


def _set(host: Host, good: str) -> str:
    names = ["GLOO_SOCKET_IFNAME"] + (["NCCL_SOCKET_IFNAME"] if host.fabric["plugin"] is not None else [])
    return "Launch with " + " ".join(f"env.{name}={good}" for name in names)


def _requested(host: Host) -> str | None:
    """The fabric that the pod asks for, or may use. A device that it cannot open is only for the host."""
    if any(name.endswith("/efa") for name in host.site.wants):
        return "EFA"
    devices = host.fabric["devices"]
    if any(name.startswith("rdma/") for name in host.site.wants) and not devices:
        return "InfiniBand"
    if not devices or not (host.fabric["given"] or host.site.wants):
        return None
    if any(device["driver"] == "efa" for device in devices):
        return "EFA"
    return NAMES.get(devices[0]["layer"], "InfiniBand")


def _efa_fault(host: Host, place: SurveyPlace) -> TransportFault | None:
    env, fi_info = host.environment, host.fabric["libfabric"]
    provider = env.get("FI_PROVIDER", "efa")
    if provider != "efa":
        return TransportFault(problem=f"FI_PROVIDER is {provider}", remedy="Launch with env.FI_PROVIDER=efa")
    if not fi_info:
        return TransportFault(
            problem="its image has no libfabric (fi_info)",
            remedy="Use an image with EFA, such as docker/cuda.Dockerfile",
        )
    if not any("efa" in line for line in fi_info if line.startswith("provider")):
        return TransportFault(
            problem=f"libfabric finds no EFA provider ({fi_info[0]})",
            remedy=f"See: {place.kubectl} exec {host.site.pod} -- fi_info -p efa",
        )
    if host.fabric["plugin"] is False:
        return TransportFault(
            problem="NCCL has no plugin for it (libnccl-net)",
            remedy="Use an image with aws-ofi-nccl, such as docker/cuda.Dockerfile",
        )
    return None


def _infiniband_fault(host: Host) -> TransportFault | None:
    if host.environment.get("NCCL_IB_DISABLE") == "1":
        return TransportFault(problem="NCCL_IB_DISABLE is 1", remedy="Take NCCL_IB_DISABLE out of env")
    if not any(device["active"] for device in host.fabric["devices"]):
        names = ", ".join(device["name"] for device in host.fabric["devices"])
        return TransportFault(
            problem=f"no port of {names} is active", remedy="Check its cable and switch, or avoid the node"
        )
    return None
