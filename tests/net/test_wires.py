"""What `stoker net` reports between machines whose network is broken on purpose."""

import pytest

from stoker.diagnose.finding import Finding
from stoker.net.findings import findings, verdict
from stoker.spec import contract

PORT = str(contract.NODES_PORT)


@pytest.fixture
def find_fault(wires):
    def only_finding(**options) -> Finding:
        """There must be exactly one finding."""
        survey = wires.survey(**options)
        faults = findings(survey)
        assert len(faults) == 1, (faults, survey.links)
        return faults[0]

    return only_finding


def test_between_healthy_nodes_nothing_is_reported(wires) -> None:
    survey = wires.survey()
    assert findings(survey) == []
    assert len(survey.links) == survey.pairs == 6
    assert {(link.mtu, link.interface, link.error) for link in survey.links} == {(1500, "eth0", "")}
    assert all(link.ms and link.gbits and link.back for link in survey.links)
    assert len(survey.names) == 4 * 5
    assert {port.state for port in survey.ports} == {"open"}
    assert verdict(survey, []).startswith("no fault between 4 nodes: ")


def test_a_port_that_is_dropped_or_refused_on_the_way_is_named(wires, find_fault) -> None:
    for target, effect in (("DROP", "is dropped"), ("REJECT --reject-with tcp-reset", "is refused by a firewall")):
        with wires.blocked(1, "INPUT", "-i", "eth0", "-p", "tcp", "--dport", PORT, "-j", *target.split()):
            finding = find_fault(hosts=2)
        assert finding.id == "port"
        assert f"port {PORT} {effect}" in finding.cause
        assert "from pod-0 to pod-1" in finding.cause
        assert "networkpolicy" in finding.remedy


def test_a_network_that_allows_only_the_supervisors_port_is_reported(wires, find_fault) -> None:
    rule = ("INPUT", "-i", "eth0", "-p", "tcp", "--syn", "!", "--dport", PORT, "-j", "DROP")
    with wires.blocked(1, *rule):
        finding = find_fault(hosts=2)
    assert finding.id == "port"
    assert "a port that the system chose" in finding.cause


def test_dns_that_does_not_answer_in_one_pod_or_in_all_is_distinguished(wires, find_fault) -> None:
    drop = ("INPUT", "-p", "udp", "--sport", "53", "-j", "DROP")
    with wires.blocked(1, *drop):
        single = find_fault(hosts=2)
        with wires.blocked(0, *drop):
            all_pods = find_fault(hosts=2)
    assert (single.id, single.pods) == ("dns", ("pod-1",))
    assert "DNS does not answer in pod pod-1 on node-1" in single.cause
    assert "DNS does not answer in any pod" in all_pods.cause
    assert "kube-dns" in all_pods.remedy


def test_a_wrong_interface_is_named(find_fault) -> None:
    finding = find_fault(hosts=2, env={"GLOO_SOCKET_IFNAME": "eth7"})
    assert finding.id == "interface"
    assert "has no interface for GLOO_SOCKET_IFNAME=eth7; it has lo, eth0" in finding.cause
    assert finding.remedy == "Launch with env.GLOO_SOCKET_IFNAME=eth0"


def test_a_link_local_interface_is_an_error(wires) -> None:
    for number in (0, 1):
        wires.wire(number, "link0", f"169.254.9.{10 + number}/24")
    try:
        survey = wires.survey(hosts=2, addresses=lambda n: f"169.254.9.{10 + n}")
    finally:
        for number in (0, 1):
            wires.host(number, "ip", "link", "delete", "link0")
    assert any(
        finding.id == "interface" and "through link0 (169.254.9.10" in finding.cause for finding in findings(survey)
    )


def test_an_unreachable_pair_is_named_and_so_is_a_node_that_is_cut_off(wires, find_fault) -> None:
    with wires.blocked(2, "INPUT", "-s", wires.address(0), "-j", "DROP"):
        pair = find_fault(hosts=3)
        with wires.blocked(2, "INPUT", "-s", wires.address(1), "-j", "DROP"):
            alone = find_fault(hosts=3)
    assert pair.id == alone.id == "unreachable"
    assert "pod-0 and pod-2 do not reach each other: no packet arrives" in pair.cause
    assert "pod pod-2 on node-2 is cut off" in alone.cause
    assert "on.avoid=[node-2]" in alone.remedy


def test_a_slow_node_is_named_with_its_figures(wires, find_fault) -> None:
    """By `tc tbf`, which bounds the rate: netem, which would make a link late as well, is not in every kernel."""
    shape = ("root", "tbf", "rate", "60mbit", "burst", "64kb", "latency", "50ms")
    wires.host(3, "tc", "qdisc", "add", "dev", "eth0", *shape)
    try:
        finding = find_fault()
    finally:
        wires.host(3, "tc", "qdisc", "delete", "dev", "eth0", "root")
    assert (finding.id, finding.pods) == ("slow", ("pod-3",))
    assert "3 links of pod pod-3 on node-3 are slow, 0.0" in finding.cause
    assert "the others have" in finding.cause
    assert "on.avoid=[node-3]" in finding.remedy


def test_packets_that_are_too_large_for_the_path_are_reported(wires, find_fault) -> None:
    def packed(segments: int, size: int) -> None:
        for number in (0, 1):
            wires.host(number, "ip", "link", "set", "eth0", "gso_max_segs", str(segments), "gso_max_size", str(size))

    packed(1, 1500)  # each packet by itself, as on a real wire
    try:
        with wires.blocked(1, "INPUT", "-p", "tcp", "-m", "length", "--length", "1401:65535", "-j", "DROP"):
            finding = find_fault(hosts=2)
    finally:
        packed(65535, 65536)
    assert finding.id == "mtu"
    assert "packets of 1500 bytes do not arrive between pod-0 and pod-1, those of 1400 do" in finding.cause
