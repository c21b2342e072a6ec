"""The lab takes away what is its own, on a machine that has a network of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from lab import network
from lab.places import LINK, RANGE

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("able")


def elsewhere(*lines: str) -> subprocess.CompletedProcess[str]:
    """Lines of shell in a fresh network namespace."""
    return subprocess.run(["unshare", "--net", "sh", "-ec", "\n".join(lines)], cwd=ROOT, capture_output=True, text=True)


def python(code: str) -> str:
    return f"{sys.executable} -c 'from lab import host, network; {code}'"


def test_what_only_looks_like_the_labs_stays() -> None:
    done = elsewhere(
        f"ip link add {LINK}-x type bridge",
        f"ip route add unreachable {RANGE}",
        python("network.disconnect()"),
        "ip -oneline link; ip route",
    )
    assert f"{LINK}-x:" in done.stdout, done.stderr
    assert f"unreachable {RANGE}" in done.stdout


def test_what_is_the_labs_goes() -> None:
    made = [f"ip link add {LINK} type bridge", f"ip route add {' '.join(network.UNREACHABLE_ROUTE)}"]
    done = elsewhere(*made, python("network.disconnect()"), "ip -oneline link; ip route")
    assert done.returncode == 0, done.stderr
    assert LINK not in done.stdout
    assert RANGE not in done.stdout


def test_a_route_that_is_in_the_way_is_named() -> None:
    done = elsewhere(f"ip route add unreachable {RANGE}", python("network.check_free()"))
    assert f"this machine has a route to {RANGE}" in done.stderr


def test_a_command_that_fails_says_why_and_no_packet_gets_out_meanwhile() -> None:
    nobody = 'host.Host(name="nobody", pid=2**22 + 1)'
    done = elsewhere(f"{python(f'network.connect({nobody}, [])')} || true", "ip route")
    assert "No such file or directory" in done.stderr
    assert f"unreachable {RANGE}" in done.stdout


def test_a_kernel_without_bridge_filters_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert network.unsupported() is None
    monkeypatch.setattr(network, "FILTER", tmp_path / "none")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert network.unsupported() == "the lab needs br_netfilter in the kernel"
