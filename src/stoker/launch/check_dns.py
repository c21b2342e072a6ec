"""Does the cluster's DNS answer? A name is asked: in a pod of a run that is up, else of the server itself from here."""

import socket
import struct
from collections.abc import Iterator
from io import BytesIO
from itertools import islice

from stoker.kube import Cluster, Forbidden, Object
from stoker.launch.check import Finding
from stoker.launch.reader import runs
from stoker.launch.remote import PYTHON
from stoker.spec import contract
from stoker.spec.errors import StokerError

SLICES = {"kubernetes.io/service-name": "kube-dns"}
HOME = "kube-system"
NAME = "kubernetes.default.svc"  # every cluster has it
DOMAIN = "cluster.local"
ANSWER_TIMEOUT_S = 1.0
PORT = 53
TRIED = 4  # servers that are asked from here
RESOLVE = """\
import os, socket, sys, threading
answers = []
def ask():
    try: answers.append(socket.getaddrinfo(sys.argv[1], None))
    except OSError: pass
asked = threading.Thread(target=ask, daemon=True)
asked.start(); asked.join(5)
os._exit(0 if answers else 1)
"""


def check_dns(cluster: Cluster) -> Iterator[Finding]:
    see = f"See: {cluster.kubectl_anywhere} -n {HOME} get pods -l k8s-app=kube-dns"
    try:
        slices = list(cluster.list("EndpointSlice", labels=SLICES, namespace=HOME))
    except Forbidden:
        slices = None
    if inside := _inside(cluster):
        pod, resolves = inside
        found = f"{NAME} resolves in pod {pod}" if resolves else f"{NAME} does not resolve in pod {pod}"
        yield _finding(resolves, found, see)
        return
    if slices is None:
        yield _finding(True, "not checked: you may not see its servers, and no pod of a run is up to ask in")
        return
    ends = [(one, _port(some)) for some in slices for one in some.get("endpoints") or []]
    ready = [(one, port) for one, port in ends if (one.get("conditions") or {}).get("ready") is not False]
    if not ready:
        yield _finding(False, "no server is ready: names do not resolve", see)
        return
    servers = f"{len(ready)} server{'s' * (len(ready) != 1)}"
    asked = [(str(address), port) for one, port in ready for address in one.get("addresses") or []][:TRIED]
    if answering := next((address for address, port in asked if answers(address, port)), None):
        yield _finding(True, f"{servers}; the one at {answering} answers")
        return
    yield _by_pods(cluster, [one for one, _ in ready], servers, see)


def answers(address: str, port: int, name: str = f"{NAME}.{DOMAIN}") -> bool:
    """Whether a DNS server there knows the name. False as well where no packet gets there from here."""
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    number = struct.pack("!H", 0x5354)
    query = number + struct.pack("!HHHHH", 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", 1, 1)
    try:
        family = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0][0]
        with socket.socket(family, socket.SOCK_DGRAM) as asking:
            asking.settimeout(ANSWER_TIMEOUT_S)
            asking.connect((address, port))
            asking.send(query)
            said = asking.recv(512)
    except OSError:
        return False
    if len(said) < 12 or said[:2] != number:
        return False
    flags, _, found = struct.unpack("!HHH", said[2:8])
    return bool(flags & 0x8000) and not flags & 0x000F and found > 0


def _inside(cluster: Cluster) -> tuple[str, bool] | None:
    """A pod of a run that is up, and whether the name resolves there; None where nobody can be asked."""
    ours = {contract.LABEL_MANAGED_BY: contract.MANAGED_BY}
    try:
        some = cluster.list("Pod", labels=ours, fields={"status.phase": "Running"}, limit=TRIED)
        for pod in filter(runs, islice(some, TRIED)):
            name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]["name"]
            code = cluster.exec(name, [*PYTHON, "-c", RESOLVE, NAME], container=container, stderr=BytesIO())
            if code in (0, 1):
                return name, code == 0
    except StokerError:
        pass  # it ended meanwhile, or you may not
    return None


def _by_pods(cluster: Cluster, ends: list[Object], servers: str, see: str) -> Finding:
    """What the pods behind the servers' addresses say of themselves, where no name could be asked."""
    names = [ref["name"] for one in ends if (ref := one.get("targetRef") or {}).get("kind") == "Pod"]
    beyond = "no name was asked: it cannot be reached from here, and no pod of a run is up to ask in"
    if not names:
        return _finding(False, f"{servers} named, none of which answers from here; {beyond}", see)
    try:
        pods = [pod for name in names[:TRIED] if (pod := cluster.get("Pod", name, namespace=HOME))]
    except Forbidden:
        return _finding(True, f"{servers} said to be ready; {beyond}")
    up = [pod["metadata"]["name"] for pod in pods if _is_ready(pod)]
    if not up:
        return _finding(False, f"{servers} named, but the pods behind them do not run: names do not resolve", see)
    return _finding(True, f"{servers}, pod {up[0]} runs; {beyond}")


def _is_ready(pod: Object) -> bool:
    conditions = {one["type"]: one["status"] for one in pod.get("status", {}).get("conditions") or []}
    return runs(pod) and conditions.get("Ready") == "True"


def _port(some: Object) -> int:
    ports = [one["port"] for one in some.get("ports") or [] if one.get("protocol") == "UDP" and one.get("port")]
    return int(ports[0]) if ports else PORT


def _finding(ok: bool, found: str, remedy: str = "") -> Finding:
    return Finding(name="DNS", ok=ok, needed=False, found=found, remedy="" if ok else remedy)
