"""What `stoker net` sees between machines whose network is broken on purpose, and what it says of it."""

import pytest

from stoker.diagnose.finding import Finding
from stoker.net.findings import findings, verdict
from stoker.spec import contract

PORT = str(contract.NODES_PORT)


@pytest.fixture
def look(wires):
    def looked(**words) -> Finding:
        """The only thing that is found."""
        survey = wires.survey(**words)
        found = findings(survey)
        assert len(found) == 1, (found, survey.links)
        return found[0]

    return looked


def test_between_healthy_nodes_nothing_is_found(wires) -> None:
    survey = wires.survey()
    found = findings(survey)
    assert found == []
    assert len(survey.links) == survey.pairs == 6
    assert {(link.mtu, link.interface, link.error) for link in survey.links} == {(1500, "eth0", "")}
    assert all(link.ms and link.gbits and link.back for link in survey.links)
    assert len(survey.names) == 4 * 5
    assert {port.state for port in survey.ports} == {"open"}
    assert verdict(survey, found).startswith("no fault between 4 nodes: ")


def test_a_port_that_is_dropped_or_refused_on_the_way_is_named(wires, look) -> None:
    for target, said in (("DROP", "is dropped"), ("REJECT --reject-with tcp-reset", "is refused by a firewall")):
        with wires.blocked(1, "INPUT", "-i", "eth0", "-p", "tcp", "--dport", PORT, "-j", *target.split()):
            found = look(hosts=2)
        assert found.id == "port"
        assert f"port {PORT} {said}" in found.cause
        assert "from pod-0 to pod-1" in found.cause
        assert "networkpolicy" in found.remedy


def test_a_network_that_lets_only_the_supervisors_port_through_is_found(wires, look) -> None:
    rule = ("INPUT", "-i", "eth0", "-p", "tcp", "--syn", "!", "--dport", PORT, "-j", "DROP")
    with wires.blocked(1, *rule):
        found = look(hosts=2)
    assert found.id == "port"
    assert "a port that the system chose" in found.cause


def test_dns_that_is_silent_in_one_pod_or_in_all_is_told_apart(wires, look) -> None:
    drop = ("INPUT", "-p", "udp", "--sport", "53", "-j", "DROP")
    with wires.blocked(1, *drop):
        one = look(hosts=2)
        with wires.blocked(0, *drop):
            every = look(hosts=2)
    assert (one.id, one.pods) == ("dns", ("pod-1",))
    assert "DNS does not answer in pod pod-1 on node-1" in one.cause
    assert "DNS does not answer in any pod" in every.cause
    assert "kube-dns" in every.remedy


def test_a_wrong_interface_is_named(look) -> None:
    found = look(hosts=2, env={"GLOO_SOCKET_IFNAME": "eth7"})
    assert found.id == "interface"
    assert "has no interface for GLOO_SOCKET_IFNAME=eth7; it has lo, eth0" in found.cause
    assert found.remedy == "Launch with env.GLOO_SOCKET_IFNAME=eth0"


def test_a_link_local_interface_is_an_error(wires) -> None:
    for number in (0, 1):
        wires.wire(number, "link0", f"169.254.9.{10 + number}/24")
    try:
        survey = wires.survey(hosts=2, addresses=lambda n: f"169.254.9.{10 + n}")
    finally:
        for number in (0, 1):
            wires.host(number, "ip", "link", "delete", "link0")
    assert any(one.id == "interface" and "through link0 (169.254.9.10" in one.cause for one in findings(survey))


def test_an_unreachable_pair_is_named_and_so_is_a_node_that_is_cut_off(wires, look) -> None:
    with wires.blocked(2, "INPUT", "-s", wires.address(0), "-j", "DROP"):
        pair = look(hosts=3)
        with wires.blocked(2, "INPUT", "-s", wires.address(1), "-j", "DROP"):
            alone = look(hosts=3)
    assert pair.id == alone.id == "unreachable"
    assert "pod-0 and pod-2 do not reach each other: no packet arrives" in pair.cause
    assert "pod pod-2 on node-2 is cut off" in alone.cause
    assert "on.avoid=[node-2]" in alone.remedy


def test_a_slow_node_is_named_with_its_figures(wires, look) -> None:
    """By `tc tbf`, which bounds the rate: netem, which would make a link late as well, is not in every kernel."""
    shape = ("root", "tbf", "rate", "60mbit", "burst", "64kb", "latency", "50ms")
    wires.host(3, "tc", "qdisc", "add", "dev", "eth0", *shape)
    try:
        found = look()
    finally:
        wires.host(3, "tc", "qdisc", "delete", "dev", "eth0", "root")
    assert (found.id, found.pods) == ("slow", ("pod-3",))
    assert "3 links of pod pod-3 on node-3 are slow, 0.0" in found.cause
    assert "the others have" in found.cause
    assert "on.avoid=[node-3]" in found.remedy


def test_packets_too_large_for_the_way_are_found(wires, look) -> None:
    def packed(segments: int, size: int) -> None:
        for number in (0, 1):
            wires.host(number, "ip", "link", "set", "eth0", "gso_max_segs", str(segments), "gso_max_size", str(size))

    packed(1, 1500)  # each packet by itself, as on a real wire
    try:
        with wires.blocked(1, "INPUT", "-p", "tcp", "-m", "length", "--length", "1401:65535", "-j", "DROP"):
            found = look(hosts=2)
    finally:
        packed(65535, 65536)
    assert found.id == "mtu"
    assert "packets of 1500 bytes do not arrive between pod-0 and pod-1, those of 1400 do" in found.cause
