"""Whether the DNS of a cluster resolves names: tried in a running pod of a run, else with a query from this machine."""

import socket
import struct
from collections.abc import Iterator
from io import BytesIO
from itertools import islice

from stoker.backends.backend import CheckResult
from stoker.backends.kubernetes.state import is_up
from stoker.backends.kubernetes.volume.remote import PYTHON
from stoker.kube import Cluster, ClusterError, Forbidden, Object
from stoker.spec import contract

SLICES = {"kubernetes.io/service-name": "kube-dns"}
DNS_NAMESPACE = "kube-system"
NAME = "kubernetes.default.svc"  # every cluster has it
DOMAIN = "cluster.local"
ANSWER_TIMEOUT_S = 1.0
PORT = 53
MAX_TRIED = 4  # DNS servers, or pods
RESOLVE = """\
import os, socket, sys, threading
addresses = []
def resolve():
    try: addresses.append(socket.getaddrinfo(sys.argv[1], None))
    except OSError: pass
thread = threading.Thread(target=resolve, daemon=True)
thread.start(); thread.join(5)
os._exit(0 if addresses else 1)
"""


def check_dns(cluster: Cluster) -> Iterator[CheckResult]:
    see = f"See: {cluster.kubectl_anywhere} -n {DNS_NAMESPACE} get pods -l k8s-app=kube-dns"
    try:
        slices = list(cluster.list("EndpointSlice", labels=SLICES, namespace=DNS_NAMESPACE))
    except Forbidden:
        slices = None
    if tried := _try_in_pod(cluster):
        pod, resolves = tried
        detail = f"{NAME} resolves in pod {pod}" if resolves else f"{NAME} does not resolve in pod {pod}"
        yield _result(resolves, detail, see)
        return
    if slices is None:
        yield _result(True, "not checked: you may not list its servers, and no pod of a run is running to try it in")
        return
    endpoints = [(endpoint, _port(slice)) for slice in slices for endpoint in slice.get("endpoints") or []]
    ready = [(end, port) for end, port in endpoints if (end.get("conditions") or {}).get("ready") is not False]
    if not ready:
        yield _result(False, "no server is ready: names do not resolve", see)
        return
    servers = f"{len(ready)} server{'s' * (len(ready) != 1)}"
    addresses = [(str(address), port) for end, port in ready for address in end.get("addresses") or []][:MAX_TRIED]
    if answering := next((address for address, port in addresses if answers(address, port)), None):
        yield _result(True, f"{servers}; the one at {answering} answers")
        return
    yield _by_pods(cluster, [endpoint for endpoint, _ in ready], servers, see)


def answers(address: str, port: int, name: str = f"{NAME}.{DOMAIN}") -> bool:
    """Whether a DNS server at that address resolves the name. False as well if it cannot be reached from here."""
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    query_id = struct.pack("!H", 0x5354)
    query = query_id + struct.pack("!HHHHH", 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", 1, 1)
    try:
        family = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0][0]
        with socket.socket(family, socket.SOCK_DGRAM) as connection:
            connection.settimeout(ANSWER_TIMEOUT_S)
            connection.connect((address, port))
            connection.send(query)
            reply = connection.recv(512)
    except OSError:
        return False
    if len(reply) < 12 or reply[:2] != query_id:
        return False
    flags, _, answer_count = struct.unpack("!HHH", reply[2:8])
    return bool(flags & 0x8000) and not flags & 0x000F and answer_count > 0


def _try_in_pod(cluster: Cluster) -> tuple[str, bool] | None:
    """A running pod of a run, and whether the name resolves in it; None where there is none."""
    labels = {contract.LABEL_MANAGED_BY: contract.MANAGED_BY}
    try:
        pods = cluster.list("Pod", labels=labels, fields={"status.phase": "Running"}, limit=MAX_TRIED)
        for pod in filter(is_up, islice(pods, MAX_TRIED)):
            name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]["name"]
            code = cluster.exec(name, [*PYTHON, "-c", RESOLVE, NAME], container=container, stderr=BytesIO())
            if code in (0, 1):
                return name, code == 0
    except ClusterError:
        pass  # the pod has ended, or the user may not execute commands in it
    return None


def _by_pods(cluster: Cluster, endpoints: list[Object], servers: str, see: str) -> CheckResult:
    """By the state of the DNS pods, where no query was possible."""
    names = [ref["name"] for end in endpoints if (ref := end.get("targetRef") or {}).get("kind") == "Pod"]
    untried = "no name was resolved: this machine cannot reach it, and no pod of a run is running to try it in"
    if not names:
        return _result(False, f"{servers} listed, none of which answers from here; {untried}", see)
    try:
        pods = [pod for name in names[:MAX_TRIED] if (pod := cluster.get("Pod", name, namespace=DNS_NAMESPACE))]
    except Forbidden:
        return _result(True, f"{servers} listed as ready; {untried}")
    ready = [pod["metadata"]["name"] for pod in pods if _is_ready(pod)]
    if not ready:
        return _result(False, f"{servers} listed, but their pods do not run: names do not resolve", see)
    return _result(True, f"{servers}, pod {ready[0]} runs; {untried}")


def _is_ready(pod: Object) -> bool:
    conditions = {entry["type"]: entry["status"] for entry in pod.get("status", {}).get("conditions") or []}
    return is_up(pod) and conditions.get("Ready") == "True"


def _port(slice: Object) -> int:
    ports = [entry for entry in slice.get("ports") or [] if entry.get("protocol") == "UDP"]
    return next((int(entry["port"]) for entry in ports if entry.get("port")), PORT)


def _result(ok: bool, detail: str, remedy: str = "") -> CheckResult:
    return CheckResult(name="DNS", ok=ok, needed=False, detail=detail, remedy="" if ok else remedy)
