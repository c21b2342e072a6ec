"""Findings about links that the network namespaces of these tests cannot have: slow to answer, many, or only noisy."""

import time
from dataclasses import replace

import pytest

from stoker.net.findings import findings, verdict
from stoker.net.survey import Host, Link, Name, NetworkSurvey, Port, Site, SurveyPlace


def host(number: int, **facts) -> Host:
    site = Site(pod=f"pod-{number}", machine=f"node-{number}", address=f"10.0.0.{number}")
    fabric = {"devices": [], "given": 0, "libfabric": [], "plugin": None}
    common = {"hostname": "h", "interfaces": [], "listens": [], "environment": {}, "fabric": fabric}
    return Host(**({"site": site, "workers": {"running": 0, "rdma": 0}} | common | facts))


def link(a: int, b: int, *, ms: float = 0.1, gbits: float = 10.0, same: bool = False) -> Link:
    return Link(source=f"pod-{a}", target=f"pod-{b}", same_machine=same, ms=ms, gbits=gbits, back=gbits, mtu=1500)


def survey(links: list[Link], *, hosts: int = 4, **facts) -> NetworkSurvey:
    common = {"live": False, "port": 29400, "lost": {}, "names": [], "ports": [], "pairs": len(links), "seconds": 1.0}
    return NetworkSurvey(
        **({"hosts": [host(n) for n in range(hosts)], "links": links, "nodes": hosts} | common | facts)
    )


def pairs(hosts: int, **figures) -> list[Link]:
    return [link(a, b, **figures) for a in range(hosts) for b in range(a + 1, hosts)]


def test_noise_is_no_fault() -> None:
    links = [
        link(0, 1, ms=0.05),
        link(0, 2, ms=1.5),
        link(1, 2, gbits=6.0),
    ]  # thirty times the latency, and still below the limit
    assert findings(survey(links)) == []


def test_a_late_link_is_named_with_its_figures() -> None:
    (finding,) = findings(survey([*pairs(4)[1:], link(0, 1, ms=8.0)]))
    assert finding.id == "late"
    assert "the link between pod-0 and pod-1 is slow to answer, 8 ms; the others have 0.1 ms" in finding.cause
    assert "between node-0, node-1" in finding.remedy


def test_a_single_pair_is_compared_with_the_needs_of_training() -> None:
    assert findings(survey([link(0, 1, gbits=0.9)], hosts=2)) == []
    (slow,) = findings(survey([link(0, 1, gbits=0.05)], hosts=2))
    (late,) = findings(survey([link(0, 1, ms=40.0)], hosts=2))
    assert (slow.id, late.id) == ("slow", "late")


def test_links_within_a_machine_are_not_compared_with_links_between_machines() -> None:
    near = [link(0, 1, gbits=90.0, same=True), link(2, 3, gbits=80.0, same=True)]
    far = [link(a, b, gbits=9.0) for a in (0, 1) for b in (2, 3)]
    assert findings(survey(near + far)) == []


def test_a_link_with_a_busy_end_is_not_reported() -> None:
    slow = replace(link(0, 1, gbits=2.0), busy=0.6)
    assert findings(survey([*pairs(4)[1:], slow])) == []
    assert [finding.id for finding in findings(survey([*pairs(4)[1:], replace(slow, busy=0.0)]))] == ["slow"]


def test_a_running_run_without_a_listening_supervisor_is_reported() -> None:
    (finding,) = findings(survey(pairs(2), hosts=2, live=True))
    assert "no supervisor of the run listens on port 29400" in finding.cause
    listening = survey(pairs(2), hosts=2, live=True)
    listening.hosts[0] = host(0, listens=[29400])
    assert findings(listening) == []


@pytest.mark.parametrize(
    ("state", "listens", "faults"), [("refused", False, 0), ("refused", True, 1), ("dropped", False, 1)]
)
def test_a_port_without_a_listener_may_refuse_but_not_drop(state: str, listens: bool, faults: int) -> None:
    ports = [
        Port(source="pod-0", target="pod-1", port=29400, state=state, listens=listens),
        Port(source="pod-0", target="pod-1", port=40001, state="open", listens=True),
    ]
    assert len(findings(survey(pairs(2), hosts=2, ports=ports))) == faults


def test_an_unknown_name_and_a_name_with_a_wrong_address_are_distinguished() -> None:
    unknown = Name(pod="pod-0", name="pod-1.run", wanted="10.0.0.1", addresses=[], error="unknown", ms=1.0)
    wrong = Name(pod="pod-0", name="pod-1.run", wanted="10.0.0.1", addresses=["10.0.0.9"], error="", ms=1.0)
    cluster_name = Name(pod="pod-0", name="kubernetes.default.svc", wanted="", addresses=[], error="unknown", ms=1.0)
    causes = [findings(survey(pairs(2), hosts=2, names=[name]))[0].cause for name in (unknown, wrong, cluster_name)]
    assert "does not know pod-1.run" in causes[0]
    assert "resolves to 10.0.0.9 in pod pod-0 instead of 10.0.0.1" in causes[1]
    assert "does not know kubernetes.default.svc" in causes[2]


def test_the_verdict_is_one_line() -> None:
    for links in (pairs(4), [*pairs(4)[1:], link(0, 1, ms=8.0)], []):
        probe_survey = survey(links, hosts=4 if links else 1)
        assert "\n" not in verdict(probe_survey, findings(probe_survey))


def test_a_pod_that_does_not_answer_is_named() -> None:
    (finding,) = findings(survey(pairs(2), hosts=2, lost={"pod-2": "it was killed"}))
    assert "pod pod-2 does not answer: it was killed" in finding.cause


def test_links_that_could_not_be_measured_are_reported() -> None:
    (finding,) = findings(survey([], pairs=6))
    assert "no link between the 4 pods could be measured" in finding.cause
    broken = Link(source="pod-0", target="pod-1", same_machine=False, error="Connection reset by peer")
    (finding,) = findings(survey([*pairs(4)[1:], broken]))
    assert "between pod-0 and pod-1 breaks during the measurement (Connection reset by peer)" in finding.cause


def test_a_closed_port_or_a_lost_pod_is_reported_once() -> None:
    dead = replace(link(0, 1), ms=None, gbits=None, back=None, error="dropped")
    ports = [Port(source="pod-0", target="pod-1", port=40001, state="dropped", listens=True)]
    assert [finding.id for finding in findings(survey([dead], hosts=2, ports=ports))] == ["unreachable"]
    assert [finding.id for finding in findings(survey([dead], hosts=2, lost={"pod-1": "no answer"}))] == ["gone"]


def test_thousands_of_links_are_compared_quickly() -> None:
    links = [*pairs(120), link(120, 121, gbits=1.0)]
    began = time.process_time()
    assert [finding.id for finding in findings(survey(links, hosts=122))] == ["slow"]
    assert time.process_time() - began < 10  # one median for each link takes a minute


def test_a_link_is_compared_with_the_others_and_not_with_itself() -> None:
    links = [link(0, 1, gbits=4.0), link(0, 2, gbits=6.0), link(1, 2, gbits=20.0)]
    (finding,) = findings(survey(links, hosts=3))
    assert "the link between pod-0 and pod-1 is slow, 4 Gbit/s" in finding.cause


def test_remedies_can_be_typed_as_they_are() -> None:
    kubectl = {"kubectl": "kubectl --context c -n team", "anywhere": "kubectl --context c"}
    place = SurveyPlace(run="books", again="stoker stop books && stoker launch books", avoid=("node-9",), **kubectl)
    slow = [link(0, n, gbits=1.0) for n in (1, 2, 3)] + [link(1, 2), link(1, 3), link(2, 3)]
    (finding,) = findings(survey(slow, place=place))
    assert finding.remedy.endswith("leave it out: stoker stop books && stoker launch books 'on.avoid=[node-9, node-0]'")
    silent = [Name(pod=f"pod-{n}", name="x", wanted="", addresses=[], error="silent", ms=1.0) for n in range(4)]
    (finding,) = findings(survey(pairs(4), names=silent, place=place))
    assert "kubectl --context c -n kube-system get pods" in finding.remedy
    (finding,) = findings(survey(pairs(4), lost={"pod-2": "it was killed"}, place=place))
    assert finding.remedy == "See: kubectl --context c -n team describe pod pod-2"
    ports = [Port(source="pod-0", target="pod-1", port=40001, state="dropped", listens=True)]
    (finding,) = findings(survey(pairs(2), hosts=2, ports=ports, place=place))
    assert "kubectl --context c -n team get networkpolicy" in finding.remedy
    (finding,) = findings(survey(pairs(2), hosts=2, live=True, place=place))
    assert finding.remedy.endswith("stoker events books, stoker logs books")


def gpus(*, count: int = 2, tflops: float = 700.0, right: bool = True, free: int = 79, reduced: float = 400.0) -> dict:
    chip = {"name": "H100", "memory": 80 << 30, "free": free << 30, "tflops": tflops, "right": right}
    chips = [{"index": at} | chip for at in range(count)]
    return {"device": "cuda", "wanted": 2, "devices": chips, "all_reduce": {"world": count, "gbytes": reduced}}


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ({"count": 1}, "has 1 GPUs of 2"),
        ({"tflops": 300.0}, "computes slowly on GPU 0: 300 TFLOP/s; others have 700"),
        ({"right": False}, "computes wrong results on GPU 0"),
        ({"free": 40}, "has 40.0 GiB of GPU 0's memory in use"),
        ({"reduced": 20.0}, "all-reduces at 20 GB/s; others have 400"),
    ],
)
def test_a_node_with_bad_gpus_is_named_and_how_to_leave_it_out(bad: dict, problem: str) -> None:
    results = {f"pod-{n}": gpus() for n in range(4)} | {"pod-2": gpus(**bad)}
    faults = findings(survey(pairs(4), gpus=results))
    assert {fault.pods for fault in faults} == {("pod-2",)}
    assert problem in faults[0].cause
    assert "on.avoid=[node-2]" in faults[0].remedy
    assert findings(survey(pairs(4), gpus={f"pod-{n}": gpus() for n in range(4)})) == []
