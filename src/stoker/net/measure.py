"""Runs the probe: all agents report their host, resolve names, try ports and measure links, within one minute."""

import random
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from statistics import median
from typing import Any

from stoker.net.agent_client import AgentClient, NoAnswer, SharedDeadline, in_parallel
from stoker.net.rounds import rounds
from stoker.net.survey import LEAST_GBITS, MOST_MS, Host, Link, Name, NetworkSurvey, Port, Site
from stoker.rundir.records import typed_value
from stoker.spec.errors import StokerError

PROBE_S = 58.0  # for everything but the preflight, so that the user has an answer within a minute
START_TIMEOUT_S = 25.0  # of an agent: beside workers that use every core, Python starts slowly
LOOKUPS_S = 8.0  # for all names of a pod together: a single one takes six when the DNS server does not answer
PORTS_S = 10.0  # for all ports of a pod: a connection attempt takes two
MARGIN_S = 5.0  # added to the time that an agent is given
LINK_TIMEOUT_S = 20.0  # a link over which almost nothing arrives takes fifteen
TRANSFER_S = 0.3  # in each direction of a link
MAX_PEERS = 64  # pods that each pod looks up and connects to
DOUBTFUL = 0.6  # of the median rate: such a link is measured again on its own, as others may have slowed it down
RETRIES, RETRIES_S = 3, 10.0  # of doubtful links, and the time for all of them
CLUSTER_NAME = "kubernetes.default.svc"  # every cluster's DNS knows it
DNS_SETTLE_S = 6.0  # until the DNS knows pods that have just started; a negative answer is cached for five
PREFLIGHT_TIMEOUT_S = 330.0


def probe(
    agents: Sequence[AgentClient],
    *,
    token: str,
    port: int,
    live: bool,
    nodes: int,
    env: dict[str, str],
    cluster_name: str = CLUSTER_NAME,
    preflight: list[str] | None = None,
) -> NetworkSurvey:
    """`env`: the run's own variables. `preflight`: arguments of the GPU preflight; None skips it."""
    began = time.monotonic()
    deadline = SharedDeadline(PROBE_S)
    hosts, started = _start(deadline, agents, token=token, ports=[] if live else [port], env=env)
    agent_ports = {agent.site.pod: number for agent, number in started}
    up = [agent for agent, _ in started]
    names = _names(deadline, up, cluster_name)
    ports = _ports(deadline, up, {host.site.pod: host.listens for host in hosts}, agent_ports, port)
    hosts = [
        replace(host, talks=[] if isinstance(talks, NoAnswer) else talks)
        for host, talks in zip(hosts, _talks(deadline, up, hosts), strict=True)
    ]
    links = _links(deadline, up, hosts, agent_ports, ports)
    gpus: dict[str, Any] = {}
    if preflight is not None:
        answers = in_parallel(up, lambda agent: agent.ask("preflight", args=preflight, timeout_s=PREFLIGHT_TIMEOUT_S))
        for agent, answer in zip(up, answers, strict=True):
            gpus[agent.site.pod] = {"error": str(answer)} if isinstance(answer, NoAnswer) else answer
    return NetworkSurvey(
        live=live,
        port=port,
        hosts=hosts,
        lost=deadline.lost,
        names=names,
        ports=ports,
        links=links,
        pairs=len(up) * (len(up) - 1) // 2,
        nodes=nodes,
        seconds=time.monotonic() - began,
        gpus=gpus,
    )


def _start(
    deadline: SharedDeadline, agents: Sequence[AgentClient], *, token: str, ports: list[int], env: dict[str, str]
) -> tuple[list[Host], list[tuple[AgentClient, int]]]:
    """The hosts of the agents that answer, and those agents with the ports that they listen on."""

    def begin(agent: AgentClient) -> tuple[Host, int]:
        return deadline.ask(
            agent,
            "begin",
            timeout_s=START_TIMEOUT_S,
            parse=lambda answer: (typed_value(Host, {"site": agent.site} | answer), int(answer["port"])),
            address=agent.site.address,
            token=token,
            ports=ports,
            env=env,
        )

    answers = in_parallel(agents, begin)
    hosts, started = [], []
    for agent, answer in zip(agents, answers, strict=True):
        if not isinstance(answer, NoAnswer):
            host, port = answer
            hosts.append(host)
            started.append((agent, port))
    if not hosts:  # no right to exec, or an image without the agent: not a network problem
        cause = next((answer.__cause__ for answer in answers if isinstance(answer.__cause__, StokerError)), None)
        if cause:
            raise cause
    return hosts, started


def _names(deadline: SharedDeadline, agents: list[AgentClient], cluster_name: str) -> list[Name]:
    def look_up(agent: AgentClient) -> list[Name]:
        wanted = {cluster_name: ""} | {
            name: site.address for site in [agent.site, *_peers(agent, agents)] for name in site.names
        }
        return deadline.ask(
            agent,
            "names",
            timeout_s=LOOKUPS_S + MARGIN_S,
            parse=lambda answers: [
                typed_value(Name, {"pod": agent.site.pod, "wanted": wanted[answer["name"]]} | answer)
                for answer in answers
            ],
            names=list(wanted),
            seconds=LOOKUPS_S,
        )

    def look_up_all() -> list[Name]:
        answers = in_parallel(agents, look_up)
        return [name for names in answers if not isinstance(names, NoAnswer) for name in names]

    names = look_up_all()
    if any(map(_may_be_new, names)) and not any(name.error == "silent" for name in names):
        time.sleep(DNS_SETTLE_S)
        names = look_up_all()
    return names


def _may_be_new(name: Name) -> bool:
    """It is not known yet, or resolves to another address than it should."""
    return name.error == "unknown" or (bool(name.wanted) and name.wanted not in name.addresses)


def _ports(
    deadline: SharedDeadline,
    agents: list[AgentClient],
    listens: dict[str, list[int]],
    agent_ports: dict[str, int],
    port: int,
) -> list[Port]:
    """The supervisors' port, and the one that the system chose for each agent, as it does for collectives."""

    def connect(agent: AgentClient) -> list[Port]:
        targets = [(site, number) for site in _peers(agent, agents) for number in (port, agent_ports[site.pod])]
        return deadline.ask(
            agent,
            "ports",
            timeout_s=PORTS_S + MARGIN_S,
            parse=lambda states: [
                Port(
                    source=agent.site.pod,
                    target=site.pod,
                    port=number,
                    state=str(state),
                    listens=number in (*listens[site.pod], agent_ports[site.pod]),
                )
                for (site, number), state in zip(targets, states, strict=True)
            ],
            targets=[(site.address, number) for site, number in targets],
            seconds=PORTS_S,
        )

    return [port for ports in in_parallel(agents, connect) if not isinstance(ports, NoAnswer) for port in ports]


def _talks(deadline: SharedDeadline, agents: list[AgentClient], hosts: list[Host]) -> list[Any]:
    """For each pod, its own addresses of connections to the others."""

    def ask(agent: AgentClient) -> list[str]:
        peers = _addresses(hosts, excluding=agent.site)
        return deadline.ask(
            agent, "talks", timeout_s=PORTS_S, parse=lambda answer: typed_value(list[str], answer), peers=peers
        )

    return in_parallel(agents, ask)


def _links(
    deadline: SharedDeadline,
    agents: list[AgentClient],
    hosts: list[Host],
    agent_ports: dict[str, int],
    ports: list[Port],
) -> list[Link]:
    """All pairs, or as many as there is time for; doubtful ones again. `ports`: which pods reach which."""
    states = {(port.source, port.target): port.state for port in ports if port.port == agent_ports[port.target]}
    links: list[Link] = []

    def measure(pair: tuple[int, int]) -> Link:
        source, target = pair
        pods = agents[source].site.pod, agents[target].site.pod
        if states.get(pods, "open") != "open" and states.get(pods[::-1]) == "open":
            (source, target), pods = (target, source), pods[::-1]
        agent, peer = agents[source], agents[target].site
        link = Link(source=pods[0], target=pods[1], same_machine=agent.site.machine == peer.machine)
        if states.get(pods, "open") != "open":
            return replace(link, error=states[pods])
        return deadline.ask(
            agent,
            "link",
            timeout_s=LINK_TIMEOUT_S,
            parse=lambda answer: typed_value(
                Link, asdict(link) | {"interface": _interface(hosts[source], answer.get("own", ""))} | answer
            ),
            address=peer.address,
            port=agent_ports[peer.pod],
            seconds=TRANSFER_S,
        )

    for pairs in rounds(len(agents)):
        if deadline.left_s < LINK_TIMEOUT_S:
            break
        links += [link for link in in_parallel(pairs, measure) if not isinstance(link, NoAnswer)]
    index = {agent.site.pod: number for number, agent in enumerate(agents)}
    end = time.monotonic() + RETRIES_S
    for _ in range(RETRIES):
        for link in _doubtful(links):
            if time.monotonic() > end or deadline.left_s < LINK_TIMEOUT_S / 2:
                return links
            again = in_parallel([(index[link.source], index[link.target])], measure)[0]
            if not isinstance(again, NoAnswer):
                links[links.index(link)] = _better(link, again)
    return links


def _doubtful(links: list[Link]) -> list[Link]:
    """Links much slower than the others of their kind: within a machine, or between machines."""
    doubtful = []
    for same in (True, False):
        alike = [link for link in links if link.same_machine is same and link.gbits and link.back]
        if len(alike) > 1:
            usual = median(_rate(link) for link in alike)
            latency = median(link.ms or 0.0 for link in alike)
            doubtful += [
                link for link in alike if _rate(link) < DOUBTFUL * usual or (link.ms or 0.0) > latency / DOUBTFUL
            ]
        else:
            doubtful += [link for link in alike if _rate(link) < LEAST_GBITS or (link.ms or 0.0) > MOST_MS]
    return doubtful


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
    return next((interface.name for interface in host.interfaces if address in interface.addresses), "")


def _peers(agent: AgentClient, agents: list[AgentClient]) -> list[Site]:
    """The pods that an agent connects to: all others or, of very many, its two neighbours and a random sample."""
    others = [other.site for other in agents if other is not agent]
    if len(others) <= MAX_PEERS:
        return others
    at = agents.index(agent)
    neighbours = [agents[at - 1].site, agents[(at + 1) % len(agents)].site]
    rest = [site for site in others if site not in neighbours]
    return neighbours + random.Random(at).sample(rest, MAX_PEERS - len(neighbours))


def _addresses(hosts: list[Host], *, excluding: Site) -> list[str]:
    """All addresses of the other pods, including those that no worker should use."""
    others = [
        interface
        for host in hosts
        if host.site.pod != excluding.pod
        for interface in host.interfaces
        if interface.name != "lo"
    ]
    return [address for interface in others for address in interface.addresses]
