"""The lab removes its own network, and nothing else of the network of the machine."""

import subprocess
import sys
from pathlib import Path

import pytest

from lab import network
from lab.places import LINK, RANGE

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("able")


def in_new_network(*lines: str) -> subprocess.CompletedProcess[str]:
    """Run shell lines in a new network namespace."""
    return subprocess.run(["unshare", "--net", "sh", "-ec", "\n".join(lines)], cwd=ROOT, capture_output=True, text=True)


def python(code: str) -> str:
    return f"{sys.executable} -c 'from lab import host, network; {code}'"


def test_a_similar_link_and_route_are_not_removed() -> None:
    done = in_new_network(
        f"ip link add {LINK}-x type bridge",
        f"ip route add unreachable {RANGE}",
        python("network.disconnect()"),
        "ip -oneline link; ip route",
    )
    assert f"{LINK}-x:" in done.stdout, done.stderr
    assert f"unreachable {RANGE}" in done.stdout


def test_the_link_and_the_route_of_the_lab_are_removed() -> None:
    setup = [f"ip link add {LINK} type bridge", f"ip route add {' '.join(network.UNREACHABLE_ROUTE)}"]
    done = in_new_network(*setup, python("network.disconnect()"), "ip -oneline link; ip route")
    assert done.returncode == 0, done.stderr
    assert LINK not in done.stdout
    assert RANGE not in done.stdout


def test_a_conflicting_route_is_named() -> None:
    done = in_new_network(f"ip route add unreachable {RANGE}", python("network.check_free()"))
    assert f"this machine has a route to {RANGE}" in done.stderr


def test_a_failed_command_is_reported_and_the_unreachable_route_stays() -> None:
    missing = 'host.Host(name="missing", pid=2**22 + 1)'
    done = in_new_network(f"{python(f'network.connect({missing}, [])')} || true", "ip route")
    assert "No such file or directory" in done.stderr
    assert f"unreachable {RANGE}" in done.stdout


def test_a_kernel_without_bridge_filters_is_unsupported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert network.unsupported() is None
    monkeypatch.setattr(network, "FILTER", tmp_path / "none")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert network.unsupported() == "the lab needs br_netfilter in the kernel"
