"""Which interface and which transport the workers of a pod use, from what its agent found: pure."""

import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from stoker.launch.probe.survey import Host, Interface, Place

NEVER_BY_ITSELF = ("lo", "docker")  # that NCCL takes only when there is nothing else
NOWHERE = Place()
NAMES = {"efa": "EFA", "InfiniBand": "InfiniBand", "Ethernet": "RoCE"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Wrong:
    """What is amiss in one pod, without its name."""

    problem: str
    remedy: str


def transport(host: Host) -> str:
    """What collectives between GPUs can travel by: TCP where nothing better is there, can be used, or is used."""
    kind = _given(host)
    return "TCP" if kind is None or fallback(host) else kind


def fallback(host: Host, place: Place = NOWHERE) -> Wrong | None:
    """Why a pod that is given EFA or InfiniBand uses TCP all the same, and nobody is told."""
    kind = _given(host)
    if kind is None:
        return None
    env, devices, workers = host.environment, host.fabric["devices"], host.workers
    back = f"falls back from {kind} to TCP"
    if not devices or not host.fabric["given"]:
        return Wrong(
            problem=f"{back}: it asks for {kind} and has no such device",
            remedy=f"See whether the device plugin runs on its node: {place.anywhere} -n kube-system get pods",
        )
    if env.get("NCCL_NET", "").lower() == "socket" or env.get("NCCL_NET_PLUGIN") == "none":
        name = "NCCL_NET" if "NCCL_NET" in env else "NCCL_NET_PLUGIN"
        return Wrong(problem=f"{back}: {name} is {env[name]}", remedy=f"Take {name} out of env")
    if problem := _efa_lacks(host, place) if kind == "EFA" else _infiniband_lacks(host):
        return Wrong(problem=f"{back}: {problem.problem}", remedy=problem.remedy)
    if workers["there"] and not workers["rdma"] and workers["stepped"]:  # before, NCCL may not have begun
        return Wrong(
            problem=f"{back}: none of its {workers['there']} workers has opened a device, and they have trained",
            remedy=f"See what NCCL says of it: {place.again} env.NCCL_DEBUG=INFO, then: stoker logs {place.run}",
        )
    return None


def wrong_interfaces(host: Host, reached_by: Iterable[str]) -> Iterator[Wrong]:
    """`reached_by`: the interfaces by which other pods were in fact reached from there."""
    faces = {face.name: face for face in host.interfaces}
    used = sorted({name for name in reached_by if name in faces})
    talking = {face.name for face in host.interfaces for address in face.addresses if address in host.talks}
    good = next((name for name in used if not is_link_local(faces[name])), "eth0")
    for name in sorted({*used, *talking}):
        if is_link_local(faces[name]):
            where = ", ".join(faces[name].addresses)
            yield Wrong(
                problem=f"reaches other pods through {name} ({where}), a link-local interface",
                remedy=_set(host, good if good != name else "eth0"),
            )
            return
    yield from _gloo(host, faces, used, good)
    yield from _nccl(host, faces, used, good)


def is_link_local(face: Interface) -> bool:
    """Of IPv4: every interface has a link-local address of IPv6 besides."""
    addresses = [ipaddress.ip_address(text) for text in face.addresses]
    own = [one for one in addresses if one.version == 4]
    return bool(own) and all(one.is_link_local for one in own)


def nccl_choice(word: str | None, faces: Iterable[Interface]) -> list[str]:
    """What NCCL_SOCKET_IFNAME leaves it: `eth,ens` by how they begin, `=eth0` whole, `^lo` all others."""
    names = [face.name for face in faces if face.addresses]
    if not word:
        fast = [name for name in names if name.startswith("ib")]
        return fast or [name for name in names if not name.startswith(NEVER_BY_ITSELF)] or names
    others, exact = word.startswith("^"), word.lstrip("^").startswith("=")
    parts = tuple(part for part in word.lstrip("^=").split(",") if part)
    chosen = [name for name in names if (name in parts if exact else name.startswith(parts))]
    return [name for name in names if name not in chosen] if others else chosen


def _gloo(host: Host, faces: dict[str, Interface], used: list[str], good: str) -> Iterator[Wrong]:
    word = host.environment.get("GLOO_SOCKET_IFNAME")
    if not word:
        return
    names = word.split(",")
    if missing := [name for name in names if name not in faces]:
        yield _missing("GLOO_SOCKET_IFNAME", missing[0], faces, good)
    elif used and not set(names) & set(used):
        yield _elsewhere("GLOO_SOCKET_IFNAME", word, used, good)


def _nccl(host: Host, faces: dict[str, Interface], used: list[str], good: str) -> Iterator[Wrong]:
    """Without a GPU nobody reads its variables, so only what was said there counts."""
    word = host.environment.get("NCCL_SOCKET_IFNAME")
    if not word and host.fabric["plugin"] is None:
        return
    chosen = nccl_choice(word, faces.values())
    said = f"NCCL_SOCKET_IFNAME is {word}" if word else "NCCL_SOCKET_IFNAME is not set"
    remedy = f"Launch with env.NCCL_SOCKET_IFNAME={good}"
    if not chosen:
        yield _missing("NCCL_SOCKET_IFNAME", str(word), faces, good)
    elif local := [name for name in chosen if is_link_local(faces[name])]:
        yield Wrong(problem=f"may use {local[0]}, a link-local interface: {said}", remedy=remedy)
    elif used and not set(chosen) & set(used):
        yield _elsewhere("NCCL_SOCKET_IFNAME", str(word), used, good)


def _missing(variable: str, name: str, faces: dict[str, Interface], good: str) -> Wrong:
    return Wrong(
        problem=f"has no interface for {variable}={name}; there are {', '.join(faces)}",
        remedy=f"Launch with env.{variable}={good}",
    )


def _elsewhere(variable: str, word: str, used: list[str], good: str) -> Wrong:
    return Wrong(
        problem=f"reaches the others through {', '.join(used)}, but {variable} is {word}",
        remedy=f"Launch with env.{variable}={good}",
    )


def _set(host: Host, good: str) -> str:
    names = ["GLOO_SOCKET_IFNAME"] + (["NCCL_SOCKET_IFNAME"] if host.fabric["plugin"] is not None else [])
    return "Launch with " + " ".join(f"env.{name}={good}" for name in names)


def _given(host: Host) -> str | None:
    """What it asks for, or has in its hands: a device that it may not open is the machine's, and not its own."""
    if any(name.endswith("/efa") for name in host.site.wants):
        return "EFA"
    devices = host.fabric["devices"]
    if any(name.startswith("rdma/") for name in host.site.wants) and not devices:
        return "InfiniBand"
    if not devices or not (host.fabric["given"] or host.site.wants):
        return None
    if any(one["driver"] == "efa" for one in devices):
        return "EFA"
    return NAMES.get(devices[0]["layer"], "InfiniBand")


def _efa_lacks(host: Host, place: Place) -> Wrong | None:
    env, said = host.environment, host.fabric["libfabric"]
    provider = env.get("FI_PROVIDER", "efa")
    if provider != "efa":
        return Wrong(problem=f"FI_PROVIDER is {provider}", remedy="Launch with env.FI_PROVIDER=efa")
    if not said:
        return Wrong(
            problem="its image has no libfabric (fi_info)",
            remedy="Use an image with EFA, such as docker/cuda.Dockerfile",
        )
    if not any("efa" in line for line in said if line.startswith("provider")):
        return Wrong(
            problem=f"libfabric finds none ({said[0]})",
            remedy=f"See: {place.kubectl} exec {host.site.pod} -- fi_info -p efa",
        )
    if host.fabric["plugin"] is False:
        return Wrong(
            problem="NCCL has no plugin for it (libnccl-net)",
            remedy="Use an image with aws-ofi-nccl, such as docker/cuda.Dockerfile",
        )
    return None


def _infiniband_lacks(host: Host) -> Wrong | None:
    if host.environment.get("NCCL_IB_DISABLE") == "1":
        return Wrong(problem="NCCL_IB_DISABLE is 1", remedy="Take NCCL_IB_DISABLE out of env")
    if not any(one["active"] for one in host.fabric["devices"]):
        names = ", ".join(one["name"] for one in host.fabric["devices"])
        return Wrong(problem=f"no port of {names} is active", remedy="Look at its cable and switch, or avoid the node")
    return None
