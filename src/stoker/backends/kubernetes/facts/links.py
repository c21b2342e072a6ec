"""Whether nodes that have not joined can reach the leader: tried in their own pods."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO

from stoker.backends.kubernetes.volume.remote import PYTHON
from stoker.diagnose.facts import DiagnosisFacts, LinkFact, PodFact, RecordFact
from stoker.kube import Cluster, ClusterError
from stoker.rundir.records import typed

JOIN_TIME_S = 3.0  # for a pod to find the others
MAX_TRIED = 3  # nodes
PROBE = """\
import json, os, socket, sys, threading
address, port, name = sys.argv[1:]
result = {"answer": "silent", "names": "broken"}
def names():
    try:
        socket.getaddrinfo(name, None)
        result["names"] = "ok"
    except OSError:
        pass
def answer():
    try:
        socket.create_connection((address, int(port))).close()
        result["answer"] = "open"
    except ConnectionRefusedError:
        result["answer"] = "refused"
    except OSError:
        result["answer"] = "unreachable"
threads = [threading.Thread(target=check, daemon=True) for check in (names, answer)]
for thread in threads: thread.start()
for thread in threads: thread.join(3)
print(json.dumps(result), flush=True)
os._exit(0)
"""
DNS_NAME = "kubernetes.default.svc"  # exists in every cluster


@dataclass(frozen=True, kw_only=True, slots=True)
class _ProbeResult:
    answer: str
    names: str


def link_facts(cluster: Cluster, container: str, facts: DiagnosisFacts) -> tuple[LinkFact, ...]:
    record = facts.record
    if record is None or not record.address or not record.port:
        return ()
    missing = {int(number) for number in re.findall(r"\d+", record.missing_nodes)}
    pods = [pod for pod in facts.pods if pod.node in missing and pod.running_s > JOIN_TIME_S][:MAX_TRIED]
    with ThreadPoolExecutor(MAX_TRIED) as pool:
        links = pool.map(lambda pod: list(_link(cluster, container, record, pod)), pods)
        return tuple(link for of_pod in links for link in of_pod)


def _link(cluster: Cluster, container: str, record: RecordFact, pod: PodFact) -> Iterator[LinkFact]:
    output = BytesIO()
    argv = [*PYTHON, "-c", PROBE, record.address, str(record.port), DNS_NAME]
    try:
        cluster.exec(pod.pod, argv, container=container, stdout=output, stderr=BytesIO())
        result = typed(_ProbeResult, output.getvalue())
    except (ClusterError, ValueError):
        return  # the pod is gone
    yield LinkFact(
        node=pod.node or 0,
        pod=pod.pod,
        leader=record.leader,
        address=record.address,
        port=record.port,
        answer=result.answer,
        dns=result.names,
    )
