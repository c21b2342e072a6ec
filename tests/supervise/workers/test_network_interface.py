"""Collectives use the interface of the node's address, and loopback on a single node."""

import ipaddress

import pytest

from stoker.net.agent.host import interfaces
from stoker.supervise.workers.network_interface import interface_of, interface_variables


def test_workers_of_one_node_use_loopback_whatever_the_environment_sets() -> None:
    machine = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "^lo"}
    loopback = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
    assert (
        interface_variables("10.0.0.7", nodes=1, environment=machine)
        == interface_variables("10.0.0.7", nodes=1, environment={})
        == loopback
    )


def test_with_several_nodes_the_environment_is_kept() -> None:
    assert interface_variables("127.0.0.2", nodes=2, environment={"GLOO_SOCKET_IFNAME": "eth0"}) == {}
    assert interface_variables("127.0.0.2", nodes=2, environment={}) == {"GLOO_SOCKET_IFNAME": "lo"}


def test_the_interface_is_found_by_its_address() -> None:
    faces = {face["name"]: face["addresses"] for face in interfaces()}
    for name, addresses in faces.items():
        first = next((text for text in addresses if ipaddress.ip_address(text).version == 4), None)
        assert first is None or interface_of(first) == name


@pytest.mark.parametrize("address", ["203.0.113.9", "2001:db8::9", "no.such.host.invalid"])
def test_an_address_of_another_machine_has_no_interface(address: str) -> None:
    assert interface_of(address) is None
