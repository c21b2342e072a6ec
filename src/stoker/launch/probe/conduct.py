"""Has the agents of all pods look around, call each other and measure in turn: in a minute, however many there are."""

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from stoker.launch.probe.agents import Agent, Roll, Silent, at_once
from stoker.launch.probe.rounds import rounds
from stoker.launch.probe.survey import LEAST_GBITS, MOST_MS, Host, Interface, Link, Name, Port, Site, Survey
from stoker.spec.errors import StokerError

MINUTE = 58.0  # seconds in which all is asked, so that it is told within one
START = 25.0  # of them for an agent to come up: beside workers that take all of the processor Python starts slowly
LOOKUPS = 8.0  # for all names of a pod together: of a silent server a single one takes six
CALLING = 10.0  # for all ports: each is given up after two
SLACK = 5.0  # beyond what an agent was told to take
LINK = 20.0  # for a link; one over which little arrives takes fifteen
EACH = 0.3  # seconds that bits flow, each way
CALLS = 64  # other pods that each pod calls by name and port
DOUBTFUL = 0.6  # of the median rate; such a link is measured again, alone: others may have been in its way
AGAIN, AGAIN_TIME = 3, 10.0  # times, and seconds for all of them
CLUSTER_NAME = "kubernetes.default.svc"  # that every cluster's DNS knows
SETTLES = 6.0  # seconds in which the DNS learns of pods that have only just started; it remembers a no for five
PREFLIGHT_PATIENCE = 330.0


def conduct(
    agents: Sequence[Agent],
    *,
    token: str,
    port: int,
    live: bool,
    nodes: int,
    env: dict[str, str],
    cluster_name: str = CLUSTER_NAME,
    preflight: list[str] | None = None,
) -> Survey:
    """`env`: the run's own variables. `preflight`: the words for it, where it is wanted."""
    began = time.monotonic()
    roll = Roll(MINUTE)
    hosts, there = _begin(roll, agents, token=token, ports=[] if live else [port], env=env)
    ports = {agent.site.pod: number for agent, number in there}
    up = [agent for agent, _ in there]
    names = _names(roll, up, cluster_name)
    called = _ports(roll, up, {host.site.pod: host.listens for host in hosts}, ports, port)
    talks = at_once(
        up, lambda agent: roll.ask(agent, "talks", patience=CALLING, peers=_addresses(hosts, but=agent.site))
    )
    hosts = [replace(host, talks=_or_none(told)) for host, told in zip(hosts, talks, strict=True)]
    links = _links(roll, up, hosts, ports, called)
    gpus: dict[str, Any] = {}
    if preflight is not None:
        told = at_once(up, lambda agent: agent.ask("preflight", words=preflight, patience=PREFLIGHT_PATIENCE))
        for agent, one in zip(up, told, strict=True):
            gpus[agent.site.pod] = {"error": str(one)} if isinstance(one, Silent) else one
    return Survey(
        live=live,
        port=port,
        hosts=hosts,
        lost=roll.lost,
        names=names,
        ports=called,
        links=links,
        pairs=len(up) * (len(up) - 1) // 2,
        nodes=nodes,
        seconds=time.monotonic() - began,
        gpus=gpus,
    )


def _begin(
    roll: Roll, agents: Sequence[Agent], *, token: str, ports: list[int], env: dict[str, str]
) -> tuple[list[Host], list[tuple[Agent, int]]]:
    words = {"token": token, "ports": ports, "env": env}
    told = at_once(agents, lambda agent: roll.ask(agent, "begin", patience=START, address=agent.site.address, **words))
    hosts, there = [], []
    for agent, one in zip(agents, told, strict=True):
        if isinstance(one, Silent):
            continue
        there.append((agent, int(one.pop("port"))))
        faces = [Interface(**face) for face in one.pop("interfaces")]
        hosts.append(Host(site=agent.site, interfaces=faces, **one))
    if not hosts:  # nobody may ask, or the image has no agent: that is no fault of the network
        cause = next((one.__cause__ for one in told if isinstance(one.__cause__, StokerError)), None)
        if cause:
            raise cause
    return hosts, there


def _names(roll: Roll, agents: list[Agent], cluster_name: str) -> list[Name]:
    def look(agent: Agent) -> list[Name]:
        wanted = {cluster_name: ""} | {
            name: site.address for site in [agent.site, *_called(agent, agents)] for name in site.names
        }
        told = roll.ask(agent, "names", patience=LOOKUPS + SLACK, names=list(wanted), seconds=LOOKUPS)
        return [Name(pod=agent.site.pod, wanted=wanted[one["name"]], **one) for one in told]

    def all_of_them() -> list[Name]:
        return [one for some in at_once(agents, look) if not isinstance(some, Silent) for one in some]

    found = all_of_them()
    if any(map(_is_new, found)) and not any(one.error == "silent" for one in found):
        time.sleep(SETTLES)
        found = all_of_them()
    return found


def _is_new(name: Name) -> bool:
    """Perhaps: not known, or not yet led to where it should."""
    return name.error == "unknown" or (bool(name.wanted) and name.wanted not in name.addresses)


def _ports(
    roll: Roll, agents: list[Agent], listens: dict[str, list[int]], own: dict[str, int], port: int
) -> list[Port]:
    """The supervisors' port, and the one that the system chose for an agent, as it does for the collectives."""

    def call(agent: Agent) -> list[Port]:
        targets = [(site, number) for site in _called(agent, agents) for number in (port, own[site.pod])]
        called = [(site.address, number) for site, number in targets]
        told = roll.ask(agent, "ports", patience=CALLING + SLACK, targets=called, seconds=CALLING)
        return [
            Port(
                source=agent.site.pod,
                target=site.pod,
                port=number,
                state=state,
                listens=number in (*listens[site.pod], own[site.pod]),
            )
            for (site, number), state in zip(targets, told, strict=True)
        ]

    return [one for some in at_once(agents, call) if not isinstance(some, Silent) for one in some]


def _links(roll: Roll, agents: list[Agent], hosts: list[Host], ports: dict[str, int], called: list[Port]) -> list[Link]:
    """All pairs, or as many as there is time for; doubtful ones again. `called`: who reaches whom at all."""
    states = {(one.source, one.target): one.state for one in called if one.port == ports[one.target]}
    found: list[Link] = []

    def measure(pair: tuple[int, int]) -> Link:
        here, there = pair
        names = agents[here].site.pod, agents[there].site.pod
        if states.get(names, "open") != "open" and states.get(names[::-1]) == "open":
            (here, there), names = (there, here), names[::-1]
        one, other = agents[here], agents[there].site
        link = Link(source=names[0], target=names[1], same_machine=one.site.machine == other.machine)
        if states.get(names, "open") != "open":
            return replace(link, error=states[names])
        told = roll.ask(one, "link", patience=LINK, address=other.address, port=ports[other.pod], seconds=EACH)
        return replace(link, interface=_interface(hosts[here], told.get("own", "")), **told)

    for one in rounds(len(agents)):
        if roll.left < LINK:
            break
        found += [link for link in at_once(one, measure) if not isinstance(link, Silent)]
    place = {agent.site.pod: at for at, agent in enumerate(agents)}
    end = time.monotonic() + AGAIN_TIME
    for _ in range(AGAIN):
        for link in _doubtful(found):
            if time.monotonic() > end or roll.left < LINK / 2:
                return found
            again = at_once([(place[link.source], place[link.target])], measure)[0]
            if not isinstance(again, Silent):
                found[found.index(link)] = _better(link, again)
    return found


def _doubtful(links: list[Link]) -> list[Link]:
    found = []
    for same in (True, False):
        alike = [link for link in links if link.same_machine is same and link.gbits and link.back]
        if len(alike) > 1:
            usual = median(_rate(link) for link in alike)
            slow = median(link.ms or 0.0 for link in alike)
            found += [link for link in alike if _rate(link) < DOUBTFUL * usual or (link.ms or 0.0) > slow / DOUBTFUL]
        else:
            found += [link for link in alike if _rate(link) < LEAST_GBITS or (link.ms or 0.0) > MOST_MS]
    return found


def _rate(link: Link) -> float:
    return min(link.gbits or 0.0, link.back or 0.0)


def _better(link: Link, again: Link) -> Link:
    if again.error or again.ms is None or link.ms is None:
        return link
    return replace(
        link,
        ms=min(link.ms, again.ms),
        gbits=max(link.gbits or 0.0, again.gbits or 0.0),
        back=max(link.back or 0.0, again.back or 0.0),
        busy=min(link.busy, again.busy),
    )


def _interface(host: Host, address: str) -> str:
    return next((face.name for face in host.interfaces if address in face.addresses), "")


def _called(agent: Agent, agents: list[Agent]) -> list[Site]:
    """All others, or of many the two beside it and some more."""
    others = [one.site for one in agents if one is not agent]
    if len(others) <= CALLS:
        return others
    at = agents.index(agent)
    beside = [agents[at - 1].site, agents[(at + 1) % len(agents)].site]
    rest = [site for site in others if site not in beside]
    return beside + random.Random(at).sample(rest, CALLS - len(beside))


def _addresses(hosts: list[Host], *, but: Site) -> list[str]:
    """All that the other pods have, also those that nobody should use."""
    others = [face for host in hosts if host.site is not but for face in host.interfaces if face.name != "lo"]
    return [address for face in others for address in face.addresses]


def _or_none(told: Any) -> list[str]:
    return [] if isinstance(told, Silent) else told
