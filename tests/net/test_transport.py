"""Interface and transport of a pod, from its agent's report; devices are read from a tree like the kernel's."""

from dataclasses import replace
from pathlib import Path

import pytest

from stoker.backends.local import rdma
from stoker.net.survey import Host, Interface, Site, SurveyPlace
from stoker.net.transport import fallback, nccl_choice, transport, wrong_interfaces

ETH0 = Interface(name="eth0", addresses=["10.0.0.7", "fe80::1"], mtu=9001)
LO = Interface(name="lo", addresses=["127.0.0.1"], mtu=65536)
POD_ID = Interface(name="pod-id-link0", addresses=["169.254.170.23"], mtu=1500)
HOST = Host(
    site=Site(pod="a", machine="node-a", address="10.0.0.7"),
    hostname="a",
    interfaces=[LO, ETH0],
    listens=[],
    environment={},
    fabric={"devices": [], "given": 0, "libfabric": [], "plugin": None},
    workers={"running": 0, "rdma": 0},
)


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Creates RDMA devices, and returns what the agent reports."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "lib"))

    def create(driver: str, layer: str, *, state: str = "4: ACTIVE", given: bool = True, gpus: int = 1):
        sys, dev = tmp_path / "sys", tmp_path / "dev"
        port = sys / "rdmap0" / "ports" / "1"
        port.mkdir(parents=True)
        (tmp_path / "drivers" / driver).mkdir(parents=True)
        (sys / "rdmap0" / "device").mkdir()
        (sys / "rdmap0" / "device" / "driver").symlink_to(tmp_path / "drivers" / driver)
        (port / "link_layer").write_text(f"{layer}\n")
        (port / "state").write_text(f"{state}\n")
        (dev / "infiniband").mkdir(parents=True)
        if given:
            (dev / "infiniband" / "uverbs0").touch()
        for number in range(gpus):
            (dev / f"nvidia{number}").touch()
        return rdma.look(sys, dev)

    return create


def test_without_devices_the_transport_is_tcp_without_a_fault() -> None:
    assert transport(HOST) == "TCP"
    assert fallback(HOST) is None


def test_infiniband_that_works_is_used(devices) -> None:
    host = replace(HOST, fabric=devices("mlx5_core", "InfiniBand"))
    assert transport(host) == "InfiniBand"
    assert transport(replace(host, workers={"running": 8, "rdma": 8})) == "InfiniBand"


@pytest.mark.parametrize(
    ("device", "changes", "problem"),
    [
        ({}, {"environment": {"NCCL_IB_DISABLE": "1"}}, "NCCL_IB_DISABLE is 1"),
        ({}, {"environment": {"NCCL_NET": "Socket"}}, "NCCL_NET is Socket"),
        ({"state": "1: DOWN"}, {}, "no port of rdmap0 is active"),
        (
            {},
            {"workers": {"running": 8, "rdma": 0, "stepped": 1}},
            "its 8 workers are training, and none has",
        ),
    ],
)
def test_a_silent_fall_back_from_infiniband_is_an_error(devices, device: dict, changes: dict, problem: str) -> None:
    host = replace(HOST, fabric=devices("mlx5_core", "InfiniBand", **device), **changes)
    fault = fallback(host)
    assert fault is not None
    assert f"falls back from InfiniBand to TCP: {problem}" in fault.problem
    assert transport(host) == "TCP"


def test_workers_that_have_not_trained_yet_may_still_open_a_device(devices) -> None:
    """NCCL begins with the first collective, which may be minutes after the start."""
    host = replace(HOST, fabric=devices("mlx5_core", "InfiniBand"), workers={"running": 8, "rdma": 0, "stepped": 0})
    assert fallback(host) is None
    assert transport(host) == "InfiniBand"


def test_devices_of_the_machine_that_a_pod_is_not_given_are_not_its_own(devices) -> None:
    assert fallback(replace(HOST, fabric=devices("mlx5_core", "InfiniBand", given=False))) is None


def test_efa_needs_libfabric_its_provider_and_a_plugin(devices) -> None:
    fabric = devices("efa", "Unspecified")
    host = replace(HOST, fabric=fabric)
    assert "no libfabric" in fallback(host).problem
    good = fabric | {"libfabric": ["provider: efa", "fabric: efa"]}
    assert "NCCL has no plugin" in fallback(replace(host, fabric=good)).problem
    assert (
        "finds no EFA provider (fi_getinfo: -61"
        in fallback(replace(host, fabric=fabric | {"libfabric": ["fi_getinfo: -61 (No data available)"]})).problem
    )
    good |= {"plugin": True}
    assert transport(replace(host, fabric=good)) == "EFA"
    other = replace(host, fabric=good, environment={"FI_PROVIDER": "tcp"})
    assert "FI_PROVIDER is tcp" in fallback(other).problem
    assert fallback(other).remedy == "Launch with env.FI_PROVIDER=efa"
    none = replace(host, fabric=fabric | {"libfabric": ["fi_getinfo: -61"]})
    place = SurveyPlace(kubectl="kubectl --context c -n team")
    assert fallback(none, place).remedy == "See: kubectl --context c -n team exec a -- fi_info -p efa"


def test_nccls_plugin_is_looked_for_where_the_loader_would(devices, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libnccl-net-ofi.so").touch()
    assert devices("efa", "Unspecified")["plugin"] is True


def test_a_pod_that_asks_for_efa_and_has_none_is_reported() -> None:
    site = replace(HOST.site, wants={"vpc.amazonaws.com/efa": 4})
    assert "it asks for EFA and has no such device" in fallback(replace(HOST, site=site)).problem


@pytest.mark.parametrize(
    ("value", "chosen"),
    [
        (None, ["eth0", "pod-id-link0"]),
        ("^lo", ["eth0", "pod-id-link0"]),
        ("^lo,pod-id", ["eth0"]),
        ("eth", ["eth0"]),
        ("=eth", []),
        ("=eth0", ["eth0"]),
        ("^=eth0", ["lo", "pod-id-link0"]),
        ("ens", []),
    ],
)
def test_the_variable_is_read_as_nccl_reads_it(value: str | None, chosen: list[str]) -> None:
    assert nccl_choice(value, [LO, ETH0, POD_ID]) == chosen


def test_a_link_local_interface_that_nccl_may_take_is_an_error() -> None:
    """EKS' pod identity gives a machine one; NCCL on it hangs."""
    gpus = HOST.fabric | {"plugin": False}
    host = replace(HOST, interfaces=[LO, ETH0, POD_ID], fabric=gpus, environment={"NCCL_SOCKET_IFNAME": "^lo"})
    (fault,) = wrong_interfaces(host, ["eth0"])
    assert "may use pod-id-link0, a link-local interface: NCCL_SOCKET_IFNAME is ^lo" in fault.problem
    assert fault.remedy == "Launch with env.NCCL_SOCKET_IFNAME=eth0"
    assert list(wrong_interfaces(replace(host, interfaces=[LO, ETH0]), ["eth0"])) == []


def test_an_interface_that_does_not_reach_the_others_is_wrong() -> None:
    eth1 = Interface(name="eth1", addresses=["192.168.3.4"], mtu=1500)
    host = replace(HOST, interfaces=[LO, ETH0, eth1], environment={"GLOO_SOCKET_IFNAME": "eth1"})
    (fault,) = wrong_interfaces(host, ["eth0"])
    assert "reaches the others through eth0, but GLOO_SOCKET_IFNAME is eth1" in fault.problem


def test_workers_that_talk_over_a_link_local_address_are_found() -> None:
    host = replace(HOST, interfaces=[LO, ETH0, POD_ID], talks=["169.254.170.23"])
    (fault,) = wrong_interfaces(host, ["eth0"])
    assert "through pod-id-link0 (169.254.170.23)" in fault.problem
