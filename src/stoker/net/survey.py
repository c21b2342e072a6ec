"""What the probe saw between the nodes: plain data, read by `findings` and printed by `stoker net`."""

from dataclasses import dataclass, field
from typing import Any

LEAST_GBITS, MOST_MS = 0.1, 20.0  # a link that is worse is reported even where all links are alike


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """A pod that takes part in the probe, as the API server describes it."""

    pod: str
    machine: str
    """The cluster's node that it is on."""
    address: str
    names: tuple[str, ...] = ()
    """DNS names that should resolve to it."""
    wants: dict[str, int] = field(default_factory=dict)
    """Network devices that it asks for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interface:
    name: str
    addresses: list[str]
    mtu: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """What an agent reports about its pod."""

    site: Site
    hostname: str
    interfaces: list[Interface]
    listens: list[int]
    environment: dict[str, str]
    """Variables that choose the interface and the transport."""
    fabric: dict[str, Any]
    """RDMA devices, how many of them the pod may use, the output of libfabric, whether NCCL has a plugin."""
    workers: dict[str, int]
    talks: list[str] = field(default_factory=list)
    """Own addresses of connections to other pods."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Name:
    """A DNS lookup in a pod."""

    pod: str
    name: str
    wanted: str
    """The address that it should resolve to; empty where any will do."""
    addresses: list[str]
    error: str
    """unknown: the server does not know the name; silent: no server answers."""
    ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Port:
    """A connection attempt from one pod to a port of another."""

    source: str
    target: str
    port: int
    state: str
    """open, refused, dropped, unreachable."""
    listens: bool
    """A process listens on it, as the target pod itself reports."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    source: str
    target: str
    same_machine: bool
    error: str = ""
    ms: float | None = None
    gbits: float | None = None
    back: float | None = None
    """Gbit/s in the other direction."""
    mtu: int | None = None
    fits: int | None = None
    """Bytes of the largest packet that arrives, where packets of the MTU do not."""
    busy: float = 0.0
    """Share of the time that one end waited for a CPU: then the CPU is slow, not the link."""
    interface: str = ""
    own: str = ""
    """The address that it was measured from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SurveyPlace:
    """Where the survey was made, as the commands in a remedy need it."""

    run: str = "RUN"
    """The run as it is named on the command line."""
    again: str = "launch with"
    """The command that starts it again; overrides may follow."""
    kubectl: str = "kubectl"
    """With its context and namespace."""
    anywhere: str = "kubectl"
    """With its context alone."""
    avoid: tuple[str, ...] = ()
    """Nodes that the run avoids already."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkSurvey:
    live: bool
    """The pods are those of a running run; otherwise they were created for the probe."""
    port: int
    """Of the supervisors."""
    hosts: list[Host]
    lost: dict[str, str]
    """Pods that did not answer -> the reason."""
    names: list[Name]
    ports: list[Port]
    links: list[Link]
    pairs: int
    """Of all pods; more than there are links when time was short."""
    nodes: int
    """Of the run; more than there are hosts when only a sample was probed."""
    seconds: float
    gpus: dict[str, Any] = field(default_factory=dict)
    """Pod -> result of its preflight."""
    place: SurveyPlace = SurveyPlace()
