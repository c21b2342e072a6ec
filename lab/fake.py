"""Fake nodes: kwok simulates thousands of nodes, and the pods scheduled on them."""

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
"""Annotation and taint of a fake node, and the label with the name of its set. Pods must tolerate the taint."""
CAPACITY = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
PARALLEL_REQUESTS = 8
TIMEOUT_S = 600
PORT = 10247  # kwok serves the kubelet API here
LEASE_S = 120  # renewed after a quarter of this time; a shorter lease means too many requests with 5,000 nodes
START = "2026-01-01T00:00:00.000000000Z"
LOG_LINE = "kwok: log of a fake pod"


def set_count(nodes: int, *, named: str = "fake") -> None:
    """Create or delete fake nodes until the set `named` has this many. kwok stops with the last node of any set."""
    kubectl = cluster.kubectl()
    existing = _readiness(kubectl, f"{MARK}={named}")
    wanted = [f"{named}-{number:05d}" for number in range(nodes)]
    if set(existing) - set(wanted):
        # one request; `kubectl delete nodes` deletes them one by one
        kubectl("delete", "--raw", f"/api/v1/nodes?labelSelector={MARK}%3D{named}")
        existing = {}
    new = [name for name in wanted if name not in existing]
    with _locked():
        if nodes and not _processes():
            _start(golang.kwok())
        with ThreadPoolExecutor(PARALLEL_REQUESTS) as pool:
            parts = [new[start::PARALLEL_REQUESTS] for start in range(PARALLEL_REQUESTS)]
            for task in [pool.submit(_create, part, named) for part in parts]:
                task.result()
    deadline = time.monotonic() + TIMEOUT_S
    while sum(_readiness(kubectl, f"{MARK}={named}").values()) < nodes:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the fake nodes did not become ready: see {LOGS}")
        time.sleep(max(0.5, nodes / 1000))
    with _locked():
        if not nodes and not _readiness(kubectl, MARK):
            _stop()


@contextmanager
def _locked() -> Iterator[None]:
    """Another test may delete the last node while this one creates its first."""
    with (STATE / "kwok.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
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
    log.write_text(f"{START} stdout F {LOG_LINE}\n")
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
    pids = []
    for pid in host.processes(host.alive()):
        with suppress(OSError):  # it has exited
            argv = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if Path(argv[0]).name == "kwok":
                pids.append(pid)
    return pids


def _create(names: list[str], named: str) -> None:
    server = control.connection(TIMEOUT_S)
    for name in names:
        server.request("POST", "/api/v1/nodes", json.dumps(_node(name, named)), {"Content-Type": "application/json"})
        response = server.getresponse()
        body = response.read()
        if response.status != HTTPStatus.CREATED:
            raise RuntimeError(f"{name}: {body.decode()}")
    server.close()


def _readiness(kubectl: Kubectl, selector: str) -> dict[str, bool]:
    """The fake nodes, and whether each is ready."""
    # a table is smaller than JSON
    lines = kubectl("get", "nodes", f"--selector={selector}", "--no-headers").splitlines()
    return {name: "Ready" in state.split(",") for name, state, *_ in map(str.split, lines)}


def _node(name: str, named: str) -> dict[str, Any]:
    labels = {MARK: named, "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": {MARK: "fake"}},
        "spec": {"taints": [{"key": MARK, "value": "fake", "effect": "NoSchedule"}]},
        "status": {"allocatable": CAPACITY, "capacity": CAPACITY},
    }
