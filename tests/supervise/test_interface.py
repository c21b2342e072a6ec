"""Collectives of workers use the interface that leads to their peers, and loopback where there are none."""

import ipaddress

import pytest

from stoker.launch.probe.host import interfaces
from stoker.supervise.interface import interface_of, variables


def test_workers_of_one_node_use_loopback_whatever_the_machine_says() -> None:
    given = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "^lo"}
    loopback = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
    assert variables("10.0.0.7", nodes=1, given=given) == variables("10.0.0.7", nodes=1, given={}) == loopback


def test_among_several_nodes_what_is_given_stays() -> None:
    assert variables("127.0.0.2", nodes=2, given={"GLOO_SOCKET_IFNAME": "eth0"}) == {}
    assert variables("127.0.0.2", nodes=2, given={}) == {"GLOO_SOCKET_IFNAME": "lo"}


def test_the_interface_is_the_one_that_has_the_address() -> None:
    faces = {face["name"]: face["addresses"] for face in interfaces()}
    for name, addresses in faces.items():
        first = next((text for text in addresses if ipaddress.ip_address(text).version == 4), None)
        assert first is None or interface_of(first) == name


@pytest.mark.parametrize("address", ["203.0.113.9", "2001:db8::9", "no.such.host.invalid"])
def test_an_address_of_no_interface_has_none(address: str) -> None:
    assert interface_of(address) is None
