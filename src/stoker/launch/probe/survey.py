"""What was seen between the nodes: plain data, for who judges it and who prints it."""

from dataclasses import dataclass, field
from typing import Any

LEAST_GBITS, MOST_MS = 0.1, 20.0  # whatever the others have: no training is worth its time over such a link


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """A pod that is asked, as the API server describes it."""

    pod: str
    machine: str
    """The cluster's node that it is on."""
    address: str
    names: tuple[str, ...] = ()
    """That lead to it."""
    wants: dict[str, int] = field(default_factory=dict)
    """Network devices that it asks for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interface:
    name: str
    addresses: list[str]
    mtu: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """What an agent found around it."""

    site: Site
    hostname: str
    interfaces: list[Interface]
    listens: list[int]
    environment: dict[str, str]
    """What chooses interface and transport."""
    fabric: dict[str, Any]
    """RDMA devices, how many of them it is given, what libfabric says, whether NCCL has a plugin."""
    workers: dict[str, int]
    talks: list[str] = field(default_factory=list)
    """Own addresses of connections to other pods."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Name:
    """A name, looked up in a pod."""

    pod: str
    name: str
    wanted: str
    """The address that it should lead to; empty where any will do."""
    addresses: list[str]
    error: str
    """unknown, or silent: no server answers."""
    ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Port:
    """A port of one pod, tried from another."""

    source: str
    target: str
    port: int
    state: str
    """open, refused, dropped, unreachable."""
    listens: bool
    """Somebody does there, as the pod itself says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    source: str
    target: str
    same_machine: bool
    error: str = ""
    ms: float | None = None
    gbits: float | None = None
    back: float | None = None
    """Gbit/s the other way."""
    mtu: int | None = None
    fits: int | None = None
    """Bytes of the largest packet that arrives, where those of the MTU do not."""
    busy: float = 0.0
    """Share of the time that an end waited for a processor: it is that, and not the link, which is slow."""
    interface: str = ""
    own: str = ""
    """The address that it was measured from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """What a remedy has to name so that it can be typed."""

    run: str = "RUN"
    """As it is called on the command line."""
    again: str = "launch with"
    """The command that starts it again; words may follow."""
    kubectl: str = "kubectl"
    """With its context and namespace."""
    anywhere: str = "kubectl"
    """With its context alone."""
    avoid: tuple[str, ...] = ()
    """Nodes that it stays away from already."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    live: bool
    """The pods are a run's that trains; else they were made for this."""
    port: int
    """The supervisors'."""
    hosts: list[Host]
    lost: dict[str, str]
    """Pods that could not be asked -> why."""
    names: list[Name]
    ports: list[Port]
    links: list[Link]
    pairs: int
    """Of all pods; more than there are links where time was short."""
    nodes: int
    """Of the run; more than there are hosts where only some were asked."""
    seconds: float
    gpus: dict[str, Any] = field(default_factory=dict)
    """Pod -> what its preflight found."""
    place: Place = Place()
