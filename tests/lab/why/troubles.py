"""What the cluster is made to have: bad namespaces, nodes that nobody runs, claims that nobody binds."""

import json
import time
from dataclasses import replace
from typing import Any

from lab.kubectl import Kubectl
from stoker.backends.kubernetes.jobs import KINDS
from tests.lab.why.faults import WORKERS

HELD = "example.com/held"
FREE = json.dumps({"metadata": {"finalizers": None}})
RESOURCES = {"vcjob": "jobs.batch.volcano.sh"}


def claim(name: str, **more: str) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Mi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec | more}


def abort(job: dict[str, Any]) -> dict[str, Any]:
    """As `vcctl job suspend` asks for it."""
    target = {"apiVersion": job["apiVersion"], "kind": job["kind"]} | {
        key: job["metadata"][key] for key in ("name", "uid")
    }
    meta = {"generateName": f"{job['metadata']['name']}-abort-", "namespace": job["metadata"]["namespace"]}
    head = {"apiVersion": "bus.volcano.sh/v1alpha1", "kind": "Command", "metadata": meta}
    return head | {"action": "AbortJob", "target": target}


def dumb_node(name: str) -> dict[str, Any]:
    """A node without anything that runs its pods."""
    meta = {"name": name, "labels": {"kubernetes.io/hostname": name}}
    taint = {"key": WORKERS, "value": "fake", "effect": "NoSchedule"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {"taints": [taint]}}


def tell(kubectl: Kubectl, name: str, *, ready: str) -> None:
    """Say in a node's place whether it is ready."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    condition = {"type": "Ready", "status": ready, "reason": "Told", "message": "", "lastHeartbeatTime": now}
    room = {"cpu": "8", "memory": "8Gi", "pods": "10"}
    status = {"conditions": [condition], "allocatable": room, "capacity": room}
    kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))


def queue(name: str) -> dict[str, Any]:
    spec = {"weight": 1, "capability": {"cpu": "100m"}}
    return {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}


def troubles(home: str, name: str) -> list[dict[str, Any]]:
    """What makes a namespace a bad place."""
    if home == "quota":
        spec = {"hard": {"requests.cpu": "50m"}}
        return [{"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "tight"}, "spec": spec}]
    if home == "ending":
        meta = {"name": "held", "finalizers": [HELD]}
        return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}]
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    hook = {
        "name": "why.example.com",
        "rules": [rule],
        "clientConfig": {"service": {"name": "nobody", "namespace": name}},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 2,
    }
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    return [head | {"metadata": {"name": name}, "webhooks": [hook]}]


def release(kubectl: Kubectl, name: str) -> None:
    """Have a namespace go, whatever holds it."""
    inside = replace(kubectl, namespace=name)
    inside("patch", "configmap", "held", "--type=merge", "-p", FREE, check=False)
    inside("delete", ",".join(RESOURCES.get(kind, f"{kind}s") for kind in KINDS), "--all", "--wait=false", check=False)
    inside("delete", "pods", "--all", "--grace-period=0", "--force", "--wait=false", check=False)
    kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


def taken(kubectl: Kubectl, one: dict[str, Any]) -> bool:
    """A TrainJob is refused until its webhook has heard of the runtime that was made just before it, or is there."""
    try:
        kubectl.apply(one)
    except RuntimeError as e:
        if any(words in str(e) for words in ("must be created before the TrainJob", "failed calling webhook")):
            return False
        raise
    return True
