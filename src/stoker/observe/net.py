"""What is wrong between the nodes, from what their agents saw: pure. Each cause once, the gravest first."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from statistics import median

from stoker.launch.probe.survey import LEAST_GBITS, MOST_MS, Link, Name, Port, Survey
from stoker.observe.fabric import Wrong, fallback, wrong_interfaces
from stoker.observe.preflight import Bad, bad_gpus

SLOW = 0.5  # of the median rate of the other links
LATE = 10.0  # times the median latency of the other links
LATE_MS = 2.0  # and no less: in a quiet network a tenth of it is noise
BUSY = 0.2  # of the time; an end that waits so long for a processor is not compared with others
FEWEST = 2  # others, or there is nothing to compare a link with
ALLOW = "Let the pods of a run reach each other on all ports: {kubectl} get networkpolicy, or the cloud's firewall"
EXPLAINED = {"gone", "unreachable", "port", "link"}  # kinds of findings that say why a link was not measured
NAMED = "get service,endpointslices"
FEW = 3  # that are named before the rest is counted


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    kind: str
    """gone, dns, unreachable, port, link, interface, transport, mtu, slow, late or gpu."""
    problem: str
    remedy: str
    pods: tuple[str, ...]


def findings(survey: Survey) -> list[Finding]:
    first = [*_gone(survey), *_dns(survey), *_reach(survey), *_broken(survey)]
    if not any(one.kind in EXPLAINED for one in first):
        first += _unmeasured(survey)
    return [
        *first,
        *_interfaces(survey),
        *_large_packets(survey),
        *_slow(survey),
        *_gpus(survey),
    ]


def verdict(survey: Survey, found: list[Finding]) -> str:
    """One line."""
    if found:
        more = f" ({len(found) - 1} more)" if len(found) > 1 else ""
        return f"{found[0].problem}. {found[0].remedy}{more}"
    if len(survey.hosts) < 2:
        return "no fault; there is one node, and nothing between nodes"
    measured = [link for link in survey.links if link.ms is not None]
    worst, usual = min(map(rate, measured)), median(map(_ms, measured))
    return f"no fault between {len(survey.hosts)} nodes: {worst:.2g} Gbit/s or more, {usual:.2g} ms"


def rate(link: Link) -> float:
    """The slower way, Gbit/s."""
    return min(link.gbits or 0.0, link.back or 0.0)


def busy(link: Link) -> bool:
    """An end waited for a processor, so that its figures are the processor's, and not the link's."""
    return link.busy >= BUSY


def _gone(survey: Survey) -> Iterator[Finding]:
    for pod, why in survey.lost.items():
        yield Finding(
            kind="gone",
            problem=f"pod {pod} cannot be asked: {why}",
            remedy=f"See: {survey.place.kubectl} describe pod {pod}",
            pods=(pod,),
        )


def _dns(survey: Survey) -> Iterator[Finding]:
    silent = {name.pod: name for name in survey.names if name.error == "silent"}
    if silent:
        everywhere = len(silent) == len({name.pod for name in survey.names})
        where = "in any pod" if everywhere else f"in {_pods(survey, silent)}"
        remedy = f"See whether CoreDNS runs: {survey.place.anywhere} -n kube-system get pods -l k8s-app=kube-dns"
        if not everywhere:
            remedy = "Something drops port 53 there: look at network policies, and kube-proxy on that node"
        yield Finding(kind="dns", problem=f"DNS does not answer {where}", remedy=remedy, pods=tuple(silent))
    unknown = [name for name in survey.names if name.error == "unknown"]
    if basic := [name for name in unknown if not name.wanted]:
        pods = {name.pod for name in basic}
        yield Finding(
            kind="dns",
            problem=f"DNS does not know {basic[0].name} in {_pods(survey, pods)}",
            remedy="That is not the cluster's DNS: look at dnsPolicy and dnsConfig in on.pod",
            pods=tuple(pods),
        )
    elif unknown:
        yield _missing(survey, unknown)
    led = [name for name in survey.names if name.addresses and name.wanted]
    if astray := [name for name in led if name.wanted not in name.addresses]:
        first = astray[0]
        there = ", ".join(first.addresses)
        yield Finding(
            kind="dns",
            problem=f"{first.name} leads to {there} in pod {first.pod}, and should to {first.wanted}",
            remedy=f"The DNS is late or another service has that name: {survey.place.kubectl} {NAMED}",
            pods=tuple({name.pod for name in astray}),
        )


def _missing(survey: Survey, unknown: list[Name]) -> Finding:
    names = sorted({name.name for name in unknown})
    return Finding(
        kind="dns",
        problem=f"DNS does not know {_some(names)} in {_pods(survey, {name.pod for name in unknown})}",
        remedy=f"See whether the run's service is there: {survey.place.kubectl} {NAMED}",
        pods=tuple({name.pod for name in unknown}),
    )


def _reach(survey: Survey) -> Iterator[Finding]:
    by_pair: dict[tuple[str, str], list[Port]] = {}
    for one in survey.ports:
        by_pair.setdefault((one.source, one.target), []).append(one)
    dead = {pair for pair, some in by_pair.items() if not any(map(_arrives, some))}
    if dead:
        yield _unreachable(survey, dead, by_pair)
    blocked = [
        one
        for pair, some in by_pair.items()
        if pair not in dead
        for one in some
        if one.state != "open" and (one.listens or one.state != "refused")
    ]
    for number in sorted({one.port if one.port == survey.port else 0 for one in blocked}, reverse=True):
        some = [one for one in blocked if (one.port == survey.port) is (number == survey.port)]
        yield _blocked(survey, some, number)
    if survey.live and len(survey.hosts) > 1 and not any(survey.port in host.listens for host in survey.hosts):
        yield Finding(
            kind="port",
            problem=f"no supervisor of the run listens on port {survey.port}",
            remedy=f"See what they wait for: stoker events {survey.place.run}, stoker logs {survey.place.run}",
            pods=(),
        )


def _arrives(port: Port) -> bool:
    """A refusal is an answer, unless a rule on the way gives it; then another port tells."""
    return port.state == "open" or (port.state == "refused" and not port.listens)


def _unreachable(survey: Survey, dead: set[tuple[str, str]], pairs: Iterable[tuple[str, str]]) -> Finding:
    """One pod that no other reaches is named alone."""
    names = [host.site.pod for host in survey.hosts]
    for pod in names:
        its = [pair for pair in pairs if pod in pair]
        if len(names) > 2 and set(its) == dead:
            return Finding(
                kind="unreachable",
                problem=f"{_pods(survey, [pod])} is cut off: no other pod reaches it, and it reaches none",
                remedy=f"Look at the network of that node, or leave it out: {_avoiding(survey, [pod])}",
                pods=(pod,),
            )
    both = sorted({tuple(sorted(pair)) for pair in dead})
    words = [f"{a} and {b} do not reach each other" if (b, a) in dead and (a, b) in dead else "" for a, b in both]
    one_way = [f"{a} does not reach {b}" for a, b in sorted(dead) if (b, a) not in dead]
    return Finding(
        kind="unreachable",
        problem=f"{_some([word for word in words if word] + one_way)}: no packet arrives",
        remedy=ALLOW.format(kubectl=survey.place.kubectl),
        pods=tuple(sorted({pod for pair in dead for pod in pair})),
    )


def _blocked(survey: Survey, some: list[Port], number: int) -> Finding:
    """`number` 0: the one that the system chose."""
    how = {"dropped": "is dropped without an answer", "refused": "is refused on the way, though somebody listens there"}
    states = sorted({one.state for one in some})
    said = how.get(states[0], f"cannot be reached ({states[0]})")
    what = f"port {number}" if number else "a port that the system chose, as it does for the collectives,"
    ways = [f"from {one.source} to {one.target}" for one in some]
    return Finding(
        kind="port",
        problem=f"{what} {said} {_some(ways)}; other ports pass",
        remedy=ALLOW.format(kubectl=survey.place.kubectl),
        pods=tuple(sorted({one.target for one in some})),
    )


def _broken(survey: Survey) -> Iterator[Finding]:
    """Links that came to nothing though both ends are there and their ports are open."""
    closed = {
        frozenset((one.source, one.target)) for one in survey.ports if one.port != survey.port and one.state != "open"
    }
    some = [
        link
        for link in survey.links
        if link.error
        and frozenset((link.source, link.target)) not in closed
        and not {link.source, link.target} & survey.lost.keys()
    ]
    if some:
        yield Finding(
            kind="link",
            problem=f"the way between {_some(map(_between, some))} breaks off while it is measured ({some[0].error})",
            remedy="Try again, and look at the network of their nodes when it stays so",
            pods=_ends(some),
        )


def _unmeasured(survey: Survey) -> Iterator[Finding]:
    if survey.pairs and not any(link.ms is not None for link in survey.links):
        yield Finding(
            kind="link",
            problem=f"no link between the {len(survey.hosts)} pods could be measured in time",
            remedy="Try again, of fewer pods with --nodes",
            pods=(),
        )


def _interfaces(survey: Survey) -> Iterator[Finding]:
    wrong: dict[tuple[str, Wrong], list[str]] = {}
    for host in survey.hosts:
        pod = host.site.pod
        reached = [link.interface for link in survey.links if link.source == pod and not link.same_machine]
        for one in wrong_interfaces(host, reached):
            wrong.setdefault(("interface", one), []).append(pod)
        if one_more := fallback(host, survey.place):
            wrong.setdefault(("transport", one_more), []).append(pod)
    for (kind, one), pods in wrong.items():
        yield Finding(kind=kind, problem=f"{_pods(survey, pods)} {one.problem}", remedy=one.remedy, pods=tuple(pods))


def _ends(links: Iterable[Link]) -> tuple[str, ...]:
    return tuple(sorted({pod for link in links for pod in (link.source, link.target)}))


def _large_packets(survey: Survey) -> Iterator[Finding]:
    small = [link for link in survey.links if link.fits]
    stuck = [link for link in survey.links if link.ms is not None and not link.fits and not rate(link)]
    for some, arrives in ((small, True), (stuck, False)):
        if not some:
            continue
        only = f", those of {min(link.fits or 0 for link in some)} do" if arrives else ", nor smaller ones"
        yield Finding(
            kind="mtu",
            problem=f"packets of {some[0].mtu} bytes do not arrive between {_some(map(_between, some))}{only}",
            remedy="Make the MTU of the pods' network smaller, or let ICMP through, which would tell them",
            pods=_ends(some),
        )


def _slow(survey: Survey) -> Iterator[Finding]:
    flowing = [link for link in survey.links if link.ms is not None and rate(link)]
    alike = {same: [link for link in flowing if link.same_machine is same] for same in (True, False)}
    rates = {same: sorted(map(rate, some)) for same, some in alike.items()}
    times = {same: sorted(map(_ms, some)) for same, some in alike.items()}
    slow, late = [], []
    for link in flowing:
        same = link.same_machine
        enough = len(alike[same]) > FEWEST
        usual = _median_of_others(rates[same], rate(link)) if enough and not busy(link) else 0.0
        if rate(link) < max(LEAST_GBITS, SLOW * usual):
            slow.append(link)
        most = min(MOST_MS, max(LATE_MS, LATE * _median_of_others(times[same], _ms(link)))) if enough else MOST_MS
        if _ms(link) > most and not busy(link):
            late.append(link)
    if slow:
        yield _lagging(survey, "slow", slow, flowing, lambda some: f"{_span(rate, some)} Gbit/s")
    told = set(slow)
    if late := [link for link in late if link not in told]:
        yield _lagging(survey, "late", late, flowing, lambda some: f"{_span(_ms, some)} ms")


def _lagging(
    survey: Survey, kind: str, some: list[Link], all_links: list[Link], figure: Callable[[list[Link]], str]
) -> Finding:
    these = set(some)
    rest = [link for link in all_links if link not in these]
    beside = f"; the others have {figure(rest)}" if rest else ""
    pods = [host.site.pod for host in survey.hosts]
    shared = [pod for pod in pods if all(pod in (link.source, link.target) for link in some)]
    if len(some) > 1 and len(shared) == 1:
        machine = _machine(survey, shared[0])
        return Finding(
            kind=kind,
            problem=f"{len(some)} links of {_pods(survey, shared)} are {kind}, {figure(some)}{beside}",
            remedy=f"Look at the network of {machine}, or leave it out: {_avoiding(survey, shared)}",
            pods=tuple(shared),
        )
    ends = [pod for link in some for pod in (link.source, link.target)]
    machines = {_machine(survey, pod): None for pod in ends}
    which = (
        f"{len(some)} links ({_some(map(_between, some))}) are"
        if len(some) > 1
        else f"the link between {_between(some[0])} is"
    )
    return Finding(
        kind=kind,
        problem=f"{which} {kind}, {figure(some)}{beside}",
        remedy=f"Look at the network between {_some(machines)}, and who else uses it",
        pods=tuple(sorted(set(ends))),
    )


def _gpus(survey: Survey) -> Iterator[Finding]:
    bad: list[Bad] = bad_gpus(survey)
    without = _avoiding(survey, [one.pod for one in bad if one.avoid])
    for one in bad:
        yield Finding(
            kind="gpu",
            problem=f"{_pods(survey, [one.pod])} {one.problem}",
            remedy=f"Leave it out: {without}" if one.avoid else one.remedy,
            pods=(one.pod,),
        )


def _avoiding(survey: Survey, pods: Iterable[str]) -> str:
    """What to type: the nodes that the run avoids already, and those of these pods."""
    place = survey.place
    names = [*place.avoid, *sorted({_machine(survey, pod) for pod in pods} - {*place.avoid})]
    return f"{place.again} 'on.avoid=[{', '.join(names)}]'"


def _pods(survey: Survey, pods: Iterable[str]) -> str:
    return _some(f"pod {pod} on {_machine(survey, pod)}" for pod in sorted(pods))


def _machine(survey: Survey, pod: str) -> str:
    return next((host.site.machine for host in survey.hosts if host.site.pod == pod), "its node")


def _between(link: Link) -> str:
    return f"{link.source} and {link.target}"


def _some(words: Iterable[str]) -> str:
    found = list(words)
    return ", ".join(found[:FEW]) + (f" and {len(found) - FEW} more" if len(found) > FEW else "")


def _span(value: Callable[[Link], float], some: list[Link]) -> str:
    least, most = f"{min(map(value, some)):.2g}", f"{max(map(value, some)):.2g}"
    return least if least == most else f"{least} to {most}"


def _median_of_others(values: list[float], own: float) -> float:
    """Of sorted values without one that is `own`: with thousands of links, none is sorted anew."""
    at, count = bisect_left(values, own), len(values) - 1
    lower, upper = (values[n if n < at else n + 1] for n in ((count - 1) // 2, count // 2))
    return (lower + upper) / 2


def _ms(link: Link) -> float:
    return link.ms or 0.0
