"""How nodes that are up and not with the others see the one that leads: asked in their own pods."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO

from stoker.kube import Cluster
from stoker.launch.remote import PYTHON
from stoker.observe.facts import Facts, LinkFact, PodFact, RecordFact
from stoker.rundir.records import typed
from stoker.spec.errors import StokerError

SETTLED = 3.0  # seconds that a pod is given to find the others
TRIED = 3  # nodes that are asked
PROBE = """\
import json, os, socket, sys, threading
address, port, name = sys.argv[1:]
told = {"answer": "silent", "names": "broken"}
def names():
    try:
        socket.getaddrinfo(name, None)
        told["names"] = "ok"
    except OSError:
        pass
def answer():
    try:
        socket.create_connection((address, int(port))).close()
        told["answer"] = "open"
    except ConnectionRefusedError:
        told["answer"] = "refused"
    except OSError:
        told["answer"] = "unreachable"
asked = [threading.Thread(target=one, daemon=True) for one in (names, answer)]
for one in asked: one.start()
for one in asked: one.join(3)
print(json.dumps(told), flush=True)
os._exit(0)
"""
KNOWN = "kubernetes.default.svc"  # a name that every cluster has


@dataclass(frozen=True, kw_only=True, slots=True)
class _Told:
    answer: str
    names: str


def link_facts(cluster: Cluster, container: str, facts: Facts) -> tuple[LinkFact, ...]:
    record = facts.record
    if record is None or not record.address or not record.port:
        return ()
    missing = {int(word) for word in re.findall(r"\d+", record.waits_for)}
    there = [pod for pod in facts.pods if pod.node in missing and pod.up > SETTLED][:TRIED]
    with ThreadPoolExecutor(TRIED) as pool:
        asked = pool.map(lambda pod: list(_link(cluster, container, record, pod)), there)
        return tuple(one for some in asked for one in some)


def _link(cluster: Cluster, container: str, record: RecordFact, pod: PodFact) -> Iterator[LinkFact]:
    said = BytesIO()
    argv = [*PYTHON, "-c", PROBE, record.address, str(record.port), KNOWN]
    try:
        cluster.exec(pod.pod, argv, container=container, stdout=said, stderr=BytesIO())
        told = typed(_Told, said.getvalue())
    except (StokerError, ValueError):
        return
    yield LinkFact(
        node=pod.node or 0,
        pod=pod.pod,
        leader=record.leader,
        address=record.address,
        port=record.port,
        answer=told.answer,
        names=told.names,
    )
