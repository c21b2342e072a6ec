"""Fake nodes: kwok plays thousands of them, and the pods that the scheduler puts there."""

import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import yaml

from lab import cluster, control, golang, host, pki
from lab.kubectl import Kubectl
from lab.places import CONTROL, FAKE_PODS, LOGS, STATE

MARK = "kwok.x-k8s.io/node"
"""Annotation and taint of a fake node, and the label with its set's name: a pod has to tolerate it to get there."""
ROOM = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
AT_ONCE = 8
PATIENCE_S = 600
PORT = 10247  # where kwok answers in the kubelets' place
LEASE_S = 120  # renewed every quarter of it: a shorter one is too many requests where there are 5,000 nodes
START = "2026-01-01T00:00:00.000000000Z"
LINE = "kwok: a fake pod says nothing else"


def have(nodes: int, *, named: str = "fake") -> None:
    """So many fake nodes of this name, no more and no fewer. kwok itself goes with the last of any name."""
    kubectl = cluster.kubectl()
    there = _there(kubectl, f"{MARK}={named}")
    wanted = [f"{named}-{number:05d}" for number in range(nodes)]
    if set(there) - set(wanted):
        kubectl("delete", "--raw", f"/api/v1/nodes?labelSelector={MARK}%3D{named}")  # kubectl itself takes one by one
        there = {}
    new = [name for name in wanted if name not in there]
    with _one_at_a_time():
        if nodes and not _processes():
            _start(golang.kwok())
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for done in [pool.submit(_create, new[start::AT_ONCE], named) for start in range(AT_ONCE)]:
                done.result()
    deadline = time.monotonic() + PATIENCE_S
    while sum(_there(kubectl, f"{MARK}={named}").values()) < nodes:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the fake nodes do not get ready: see {LOGS}")
        time.sleep(max(0.5, nodes / 1000))
    with _one_at_a_time():
        if not nodes and not _there(kubectl, MARK):
            _stop()


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Another test's last node may go while this one's first comes."""
    with (STATE / "kwok.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _stop() -> None:
    for pid in _processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    while _processes():
        time.sleep(0.1)


def _start(built: Path) -> None:
    config = STATE / "kwok.yaml"
    log = STATE / "kwok.pod.log"
    log.write_text(f"{START} stdout F {LINE}\n")
    logs = {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "ClusterLogs",
        "metadata": {"name": "all"},
        "spec": {"logs": [{"logsFile": str(log)}]},
    }
    stages = [file.read_text() for file in sorted(built.glob("*.yaml"))]
    config.write_text("\n---\n".join([yaml.safe_dump(logs), *stages]))
    host.alive()["control"].start(
        "kwok",
        str(built / "kwok"),
        f"--config={config}",
        f"--kubeconfig={pki.kubeconfig('lab')}",
        f"--manage-nodes-with-annotation-selector={MARK}=fake",
        f"--cidr={FAKE_PODS}",
        f"--node-ip={CONTROL}",
        f"--node-port={PORT}",
        f"--server-address={CONTROL}:{PORT}",
        f"--tls-cert-file={pki.certificate('apiserver')}",
        f"--tls-private-key-file={pki.key('apiserver')}",
        f"--node-lease-duration-seconds={LEASE_S}",
    )


def _processes() -> list[int]:
    found = []
    for pid in host.processes(host.alive()):
        with suppress(OSError):  # it ended meanwhile
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if Path(words[0]).name == "kwok":
                found.append(pid)
    return found


def _create(names: list[str], named: str) -> None:
    asked = control.connection(PATIENCE_S)
    for name in names:
        asked.request("POST", "/api/v1/nodes", json.dumps(_node(name, named)), {"Content-Type": "application/json"})
        answer = asked.getresponse()
        said = answer.read()
        if answer.status != HTTPStatus.CREATED:
            raise RuntimeError(f"{name}: {said.decode()}")
    asked.close()


def _there(kubectl: Kubectl, selector: str) -> dict[str, bool]:
    """The fake nodes, and whether each is ready."""
    lines = kubectl("get", "nodes", f"--selector={selector}", "--no-headers").splitlines()  # a table is small
    return {name: "Ready" in state.split(",") for name, state, *_ in map(str.split, lines)}


def _node(name: str, named: str) -> dict[str, Any]:
    labels = {MARK: named, "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": {MARK: "fake"}},
        "spec": {"taints": [{"key": MARK, "value": "fake", "effect": "NoSchedule"}]},
        "status": {"allocatable": ROOM, "capacity": ROOM},
    }
