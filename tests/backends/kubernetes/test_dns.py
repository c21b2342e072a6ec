"""Whether a cluster's DNS resolves names, and what is reported where that cannot be tried."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.backends.backend import CheckResult
from stoker.backends.kubernetes.dns import answers, check_dns
from stoker.kube import connect
from tests.backends.kubernetes.served import NOT_FOUND, served
from tests.net.dns_server import answer as dns_answer
from tests.ports import free_port

KNOWN = "kubernetes.default.svc.cluster.local"


@pytest.fixture
def server() -> Iterator[int]:
    """A DNS server on loopback: its port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.1", 0))

        def serve() -> None:
            while True:
                try:
                    query, client = listening.recvfrom(512)
                except OSError:
                    return
                if not query:
                    return
                listening.sendto(dns_answer(query, {KNOWN: "10.96.0.1"}), client)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        port = listening.getsockname()[1]
        yield port
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", ("127.0.0.1", port))
        thread.join()


def test_a_server_answers_when_it_knows_the_name(server: int) -> None:
    assert answers("127.0.0.1", server)
    assert not answers("127.0.0.1", server, "no.such.name")
    assert not answers("127.0.0.1", free_port("127.0.0.1"))
    assert not answers("no address", 53)


def endpoint_slices(port: int, *, ready: bool = True, pod: str = "") -> list[Any]:
    endpoint: dict[str, Any] = {"addresses": ["127.0.0.1"], "conditions": {"ready": ready}}
    if pod:
        endpoint["targetRef"] = {"kind": "Pod", "name": pod}
    return [{"metadata": {"name": "kube-dns"}, "ports": [{"protocol": "UDP", "port": port}], "endpoints": [endpoint]}]


def dns_result(
    folder: Path, monkeypatch: pytest.MonkeyPatch, slices: list[Any], pod: dict[str, Any] | None = None
) -> CheckResult:
    def answer(_method: str, path: str, _query: str) -> tuple[int, Any]:
        last = path.rpartition("/")[2]
        if last == "endpointslices":
            return 200, {"metadata": {}, "items": slices}
        if last == "pods":
            return 200, {"metadata": {}, "items": []}
        if last == "coredns-1" and pod:
            return 200, pod
        return 404, NOT_FOUND

    with served(folder, answer) as file:
        monkeypatch.setenv("KUBECONFIG", str(file))
        [result] = check_dns(connect())
        return result


def test_a_server_that_answers_is_ok(server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = dns_result(tmp_path, monkeypatch, endpoint_slices(server))
    assert result.ok
    assert "1 server; the one at 127.0.0.1 answers" in result.detail


def test_an_address_without_a_server_is_not_ok(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = dns_result(tmp_path, monkeypatch, endpoint_slices(free_port("127.0.0.1")))
    assert not result.ok
    assert "none of which answers from here" in result.detail
    assert "get pods -l k8s-app=kube-dns" in result.remedy
    assert not dns_result(tmp_path, monkeypatch, endpoint_slices(53, ready=False)).ok
    assert not dns_result(tmp_path, monkeypatch, []).ok


@pytest.mark.parametrize(
    ("state", "ready", "ok"), [("running", "True", True), ("running", "False", False), ("waiting", "False", False)]
)
def test_where_no_name_can_be_resolved_the_dns_pods_must_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, ready: str, ok: bool
) -> None:
    status = {"phase": "Running", "containerStatuses": [{"state": {state: {}}}]}
    status["conditions"] = [{"type": "Ready", "status": ready}]
    pod = {"metadata": {"name": "coredns-1"}, "status": status}
    result = dns_result(tmp_path, monkeypatch, endpoint_slices(free_port("127.0.0.1"), pod="coredns-1"), pod)
    assert result.ok is ok
    assert ("pod coredns-1 runs; no name was resolved" in result.detail) is ok
