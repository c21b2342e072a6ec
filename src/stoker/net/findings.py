"""What is wrong between the nodes, from a survey. Pure. Each cause once, the most serious first."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from statistics import median

from stoker.diagnose.finding import Finding
from stoker.net.preflight import gpu_faults
from stoker.net.survey import LEAST_GBITS, MOST_MS, Link, Name, NetworkSurvey, Port
from stoker.net.transport import TransportFault, fallback, wrong_interfaces

SLOW = 0.5  # of the median rate of the other links
LATE = 10.0  # times the median latency of the other links
LATE_MS = 2.0  # never reported below: on an idle network a tenth of it is noise
BUSY = 0.2  # of the time: an end that waited so long for a CPU is not compared with others
FEWEST_OTHERS = 2  # links that a link is compared with
ALLOW = "Let the pods of a run reach each other on all ports: {kubectl} get networkpolicy, or the cloud's firewall"
EXPLAINED = {"gone", "unreachable", "port", "link"}  # ids of findings that explain why a link was not measured
GET_SERVICES = "get service,endpointslices"
NAMES_SHOWN = 3  # the rest is counted
ADJECTIVES = {"slow": "slow", "late": "slow to answer"}


def findings(survey: NetworkSurvey) -> list[Finding]:
    serious = [*_gone(survey), *_dns(survey), *_reach(survey), *_broken(survey)]
    if not any(finding.id in EXPLAINED for finding in serious):
        serious += _unmeasured(survey)
    return [
        *serious,
        *_interfaces(survey),
        *_large_packets(survey),
        *_slow(survey),
        *_gpus(survey),
    ]


def verdict(survey: NetworkSurvey, findings: list[Finding]) -> str:
    """One line."""
    if findings:
        more = f" ({len(findings) - 1} more)" if len(findings) > 1 else ""
        return f"{findings[0].cause}. {findings[0].remedy}{more}"
    if len(survey.hosts) < 2:
        return "no fault; there is only one node, so there are no links to measure"
    measured = [link for link in survey.links if link.ms is not None]
    worst, usual = min(map(rate, measured)), median(map(_ms, measured))
    return f"no fault between {len(survey.hosts)} nodes: {worst:.2g} Gbit/s or more, {usual:.2g} ms"


def rate(link: Link) -> float:
    """Gbit/s in the slower direction."""
    return min(link.gbits or 0.0, link.back or 0.0)


def busy(link: Link) -> bool:
    """One end waited for a CPU, so the figures say nothing about the link."""
    return link.busy >= BUSY


def _gone(survey: NetworkSurvey) -> Iterator[Finding]:
    for pod, reason in survey.lost.items():
        yield Finding(
            id="gone",
            cause=f"pod {pod} does not answer: {reason}",
            remedy=f"See: {survey.place.kubectl} describe pod {pod}",
            pods=(pod,),
        )


def _dns(survey: NetworkSurvey) -> Iterator[Finding]:
    silent = {name.pod: name for name in survey.names if name.error == "silent"}
    if silent:
        everywhere = len(silent) == len({name.pod for name in survey.names})
        where = "in any pod" if everywhere else f"in {_pods(survey, silent)}"
        remedy = f"See whether CoreDNS runs: {survey.place.anywhere} -n kube-system get pods -l k8s-app=kube-dns"
        if not everywhere:
            remedy = "Packets to port 53 are dropped there: check the network policies, and kube-proxy on that node"
        yield Finding(id="dns", cause=f"DNS does not answer {where}", remedy=remedy, pods=tuple(silent))
    unknown = [name for name in survey.names if name.error == "unknown"]
    if basic := [name for name in unknown if not name.wanted]:
        pods = {name.pod for name in basic}
        yield Finding(
            id="dns",
            cause=f"DNS does not know {basic[0].name} in {_pods(survey, pods)}",
            remedy="The pod does not use the cluster's DNS: check dnsPolicy and dnsConfig in on.pod",
            pods=tuple(pods),
        )
    elif unknown:
        yield _missing(survey, unknown)
    resolved = [name for name in survey.names if name.addresses and name.wanted]
    if wrong := [name for name in resolved if name.wanted not in name.addresses]:
        first = wrong[0]
        addresses = ", ".join(first.addresses)
        yield Finding(
            id="dns",
            cause=f"{first.name} resolves to {addresses} in pod {first.pod} instead of {first.wanted}",
            remedy=f"The DNS is out of date, or another service has that name: {survey.place.kubectl} {GET_SERVICES}",
            pods=tuple({name.pod for name in wrong}),
        )


def _missing(survey: NetworkSurvey, unknown: list[Name]) -> Finding:
    names = sorted({name.name for name in unknown})
    return Finding(
        id="dns",
        cause=f"DNS does not know {_some(names)} in {_pods(survey, {name.pod for name in unknown})}",
        remedy=f"Check that the run's service exists: {survey.place.kubectl} {GET_SERVICES}",
        pods=tuple({name.pod for name in unknown}),
    )


def _reach(survey: NetworkSurvey) -> Iterator[Finding]:
    by_pair: dict[tuple[str, str], list[Port]] = {}
    for port in survey.ports:
        by_pair.setdefault((port.source, port.target), []).append(port)
    dead = {pair for pair, ports in by_pair.items() if not any(map(_arrives, ports))}
    if dead:
        yield _unreachable(survey, dead, by_pair)
    blocked = [
        port
        for pair, ports in by_pair.items()
        if pair not in dead
        for port in ports
        if port.state != "open" and (port.listens or port.state != "refused")
    ]
    for number in sorted({port.port if port.port == survey.port else 0 for port in blocked}, reverse=True):
        ports = [port for port in blocked if (port.port == survey.port) is (number == survey.port)]
        yield _blocked(survey, ports, number)
    if survey.live and len(survey.hosts) > 1 and not any(survey.port in host.listens for host in survey.hosts):
        yield Finding(
            id="port",
            cause=f"no supervisor of the run listens on port {survey.port}",
            remedy=f"See what they wait for: stoker events {survey.place.run}, stoker logs {survey.place.run}",
            pods=(),
        )


def _arrives(port: Port) -> bool:
    """Whether packets arrive. A refusal where a process listens comes from a firewall: then the other port decides."""
    return port.state == "open" or (port.state == "refused" and not port.listens)


def _unreachable(survey: NetworkSurvey, dead: set[tuple[str, str]], pairs: Iterable[tuple[str, str]]) -> Finding:
    """A single pod that no other pod reaches is named alone."""
    names = [host.site.pod for host in survey.hosts]
    for pod in names:
        its_pairs = {pair for pair in pairs if pod in pair}
        if len(names) > 2 and its_pairs == dead:
            return Finding(
                id="unreachable",
                cause=f"{_pods(survey, [pod])} is cut off: no other pod reaches it, and it reaches none",
                remedy=f"Check the network of that node, or leave it out: {_avoiding(survey, [pod])}",
                pods=(pod,),
            )
    mutual = sorted({tuple(sorted(pair)) for pair in dead if pair[::-1] in dead})
    both_ways = [f"{a} and {b} do not reach each other" for a, b in mutual]
    one_way = [f"{a} does not reach {b}" for a, b in sorted(dead) if (b, a) not in dead]
    return Finding(
        id="unreachable",
        cause=f"{_some(both_ways + one_way)}: no packet arrives",
        remedy=ALLOW.format(kubectl=survey.place.kubectl),
        pods=tuple(sorted({pod for pair in dead for pod in pair})),
    )


def _blocked(survey: NetworkSurvey, ports: list[Port], number: int) -> Finding:
    """`number` 0: the port that the system chose."""
    verbs = {"dropped": "is dropped without an answer", "refused": "is refused by a firewall, though a process listens"}
    states = sorted({port.state for port in ports})
    verb = verbs.get(states[0], f"cannot be reached ({states[0]})")
    name = f"port {number}" if number else "a port that the system chose, as it does for collectives,"
    routes = [f"from {port.source} to {port.target}" for port in ports]
    return Finding(
        id="port",
        cause=f"{name} {verb} {_some(routes)}; other ports work",
        remedy=ALLOW.format(kubectl=survey.place.kubectl),
        pods=tuple(sorted({port.target for port in ports})),
    )


def _broken(survey: NetworkSurvey) -> Iterator[Finding]:
    """Links that could not be measured although both ends answer and their ports are open."""
    closed = {
        frozenset((port.source, port.target))
        for port in survey.ports
        if port.port != survey.port and port.state != "open"
    }
    links = [
        link
        for link in survey.links
        if link.error
        and frozenset((link.source, link.target)) not in closed
        and not {link.source, link.target} & survey.lost.keys()
    ]
    if links:
        yield Finding(
            id="link",
            cause=f"the connection between {_some(map(_between, links))} breaks during the measurement "
            f"({links[0].error})",
            remedy="Try again; if it happens again, check the network of their nodes",
            pods=_ends(links),
        )


def _unmeasured(survey: NetworkSurvey) -> Iterator[Finding]:
    if survey.pairs and not any(link.ms is not None for link in survey.links):
        yield Finding(
            id="link",
            cause=f"no link between the {len(survey.hosts)} pods could be measured in time",
            remedy="Try again with fewer pods: --nodes N",
            pods=(),
        )


def _interfaces(survey: NetworkSurvey) -> Iterator[Finding]:
    faults: dict[tuple[str, TransportFault], list[str]] = {}
    for host in survey.hosts:
        pod = host.site.pod
        used = [link.interface for link in survey.links if link.source == pod and not link.same_machine]
        for fault in wrong_interfaces(host, used):
            faults.setdefault(("interface", fault), []).append(pod)
        if slower := fallback(host, survey.place):
            faults.setdefault(("transport", slower), []).append(pod)
    for (id, fault), pods in faults.items():
        yield Finding(id=id, cause=f"{_pods(survey, pods)} {fault.problem}", remedy=fault.remedy, pods=tuple(pods))


def _ends(links: Iterable[Link]) -> tuple[str, ...]:
    return tuple(sorted({pod for link in links for pod in (link.source, link.target)}))


def _large_packets(survey: NetworkSurvey) -> Iterator[Finding]:
    small = [link for link in survey.links if link.fits]
    stuck = [link for link in survey.links if link.ms is not None and not link.fits and not rate(link)]
    for links, smaller_arrive in ((small, True), (stuck, False)):
        if not links:
            continue
        smaller = (
            f", those of {min(link.fits or 0 for link in links)} do"
            if smaller_arrive
            else ", and smaller ones do not either"
        )
        yield Finding(
            id="mtu",
            cause=f"packets of {links[0].mtu} bytes do not arrive between {_some(map(_between, links))}{smaller}",
            remedy="Lower the MTU of the pods' network, or allow ICMP so that the hosts can discover it",
            pods=_ends(links),
        )


def _slow(survey: NetworkSurvey) -> Iterator[Finding]:
    flowing = [link for link in survey.links if link.ms is not None and rate(link)]
    alike = {same: [link for link in flowing if link.same_machine is same] for same in (True, False)}
    rates = {same: sorted(map(rate, links)) for same, links in alike.items()}
    times = {same: sorted(map(_ms, links)) for same, links in alike.items()}
    slow, late = [], []
    for link in flowing:
        same = link.same_machine
        enough = len(alike[same]) > FEWEST_OTHERS
        usual = _median_of_others(rates[same], rate(link)) if enough and not busy(link) else 0.0
        if rate(link) < max(LEAST_GBITS, SLOW * usual):
            slow.append(link)
        most = min(MOST_MS, max(LATE_MS, LATE * _median_of_others(times[same], _ms(link)))) if enough else MOST_MS
        if _ms(link) > most and not busy(link):
            late.append(link)
    if slow:
        yield _lagging(survey, "slow", slow, flowing, lambda links: f"{_span(rate, links)} Gbit/s")
    reported = set(slow)
    if late := [link for link in late if link not in reported]:
        yield _lagging(survey, "late", late, flowing, lambda links: f"{_span(_ms, links)} ms")


def _lagging(
    survey: NetworkSurvey, id: str, links: list[Link], all_links: list[Link], figure: Callable[[list[Link]], str]
) -> Finding:
    lagging = set(links)
    rest = [link for link in all_links if link not in lagging]
    others = f"; the others have {figure(rest)}" if rest else ""
    pods = [host.site.pod for host in survey.hosts]
    shared = [pod for pod in pods if all(pod in (link.source, link.target) for link in links)]
    if len(links) > 1 and len(shared) == 1:
        machine = _machine(survey, shared[0])
        return Finding(
            id=id,
            cause=f"{len(links)} links of {_pods(survey, shared)} are {ADJECTIVES[id]}, {figure(links)}{others}",
            remedy=f"Check the network of {machine}, or leave it out: {_avoiding(survey, shared)}",
            pods=tuple(shared),
        )
    ends = [pod for link in links for pod in (link.source, link.target)]
    machines = {_machine(survey, pod): None for pod in ends}
    subject = (
        f"{len(links)} links ({_some(map(_between, links))}) are"
        if len(links) > 1
        else f"the link between {_between(links[0])} is"
    )
    return Finding(
        id=id,
        cause=f"{subject} {ADJECTIVES[id]}, {figure(links)}{others}",
        remedy=f"Check the network between {_some(machines)}, and what else uses it",
        pods=tuple(sorted(set(ends))),
    )


def _gpus(survey: NetworkSurvey) -> Iterator[Finding]:
    faults = gpu_faults(survey)
    avoid = _avoiding(survey, [fault.pod for fault in faults if fault.avoid])
    for fault in faults:
        yield Finding(
            id="gpu",
            cause=f"{_pods(survey, [fault.pod])} {fault.problem}",
            remedy=f"Leave it out: {avoid}" if fault.avoid else fault.remedy,
            pods=(fault.pod,),
        )


def _avoiding(survey: NetworkSurvey, pods: Iterable[str]) -> str:
    """The command that avoids the nodes of these pods, and those that the run avoids already."""
    place = survey.place
    names = [*place.avoid, *sorted({_machine(survey, pod) for pod in pods} - {*place.avoid})]
    return f"{place.again} 'on.avoid=[{', '.join(names)}]'"


def _pods(survey: NetworkSurvey, pods: Iterable[str]) -> str:
    return _some(f"pod {pod} on {_machine(survey, pod)}" for pod in sorted(pods))


def _machine(survey: NetworkSurvey, pod: str) -> str:
    return next((host.site.machine for host in survey.hosts if host.site.pod == pod), "its node")


def _between(link: Link) -> str:
    return f"{link.source} and {link.target}"


def _some(names: Iterable[str]) -> str:
    """The first few, and how many more there are."""
    names = list(names)
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _span(value: Callable[[Link], float], links: list[Link]) -> str:
    least, most = f"{min(map(value, links)):.2g}", f"{max(map(value, links)):.2g}"
    return least if least == most else f"{least} to {most}"


def _median_of_others(values: list[float], own: float) -> float:
    """The median of sorted values without one that equals `own`. No sorting: there may be thousands of links."""
    at, count = bisect_left(values, own), len(values) - 1
    lower, upper = (values[n if n < at else n + 1] for n in ((count - 1) // 2, count // 2))
    return (lower + upper) / 2


def _ms(link: Link) -> float:
    return link.ms or 0.0
