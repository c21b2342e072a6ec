"""Objects that cause faults: quotas, webhooks and nodes without a kubelet."""

import json
import time
from dataclasses import replace
from typing import Any

from lab.kubectl import Kubectl
from stoker.backends.kubernetes.jobs import KINDS
from tests.lab.why.faults import FAKE_NODES

FINALIZER = "example.com/held"
NO_FINALIZERS = json.dumps({"metadata": {"finalizers": None}})
RESOURCES = {"vcjob": "jobs.batch.volcano.sh"}


def claim(name: str, **fields: str) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Mi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec | fields}


def abort(job: dict[str, Any]) -> dict[str, Any]:
    """The command object that `vcctl job suspend` creates."""
    target = {"apiVersion": job["apiVersion"], "kind": job["kind"]} | {
        key: job["metadata"][key] for key in ("name", "uid")
    }
    meta = {"generateName": f"{job['metadata']['name']}-abort-", "namespace": job["metadata"]["namespace"]}
    head = {"apiVersion": "bus.volcano.sh/v1alpha1", "kind": "Command", "metadata": meta}
    return head | {"action": "AbortJob", "target": target}


def node_without_kubelet(name: str) -> dict[str, Any]:
    meta = {"name": name, "labels": {"kubernetes.io/hostname": name}}
    taint = {"key": FAKE_NODES, "value": "fake", "effect": "NoSchedule"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {"taints": [taint]}}


def set_ready(kubectl: Kubectl, name: str, *, ready: str) -> None:
    """Write the Ready condition of a node, as its kubelet would."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    condition = {"type": "Ready", "status": ready, "reason": "Test", "message": "", "lastHeartbeatTime": now}
    capacity = {"cpu": "8", "memory": "8Gi", "pods": "10"}
    status = {"conditions": [condition], "allocatable": capacity, "capacity": capacity}
    kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))


def queue(name: str) -> dict[str, Any]:
    spec = {"weight": 1, "capability": {"cpu": "100m"}}
    return {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}


def namespace_problem(problem: str, namespace: str) -> list[dict[str, Any]]:
    """The objects that give a namespace this problem: `quota`, `ending` or `webhook`."""
    if problem == "quota":
        spec = {"hard": {"requests.cpu": "50m"}}
        return [{"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "tight"}, "spec": spec}]
    if problem == "ending":
        meta = {"name": "held", "finalizers": [FINALIZER]}
        return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}]
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    hook = {
        "name": "why.example.com",
        "rules": [rule],
        "clientConfig": {"service": {"name": "nobody", "namespace": namespace}},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 2,
    }
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    return [head | {"metadata": {"name": namespace}, "webhooks": [hook]}]


def delete_namespace(kubectl: Kubectl, name: str) -> None:
    """Delete a namespace, and the finalizers that hold it."""
    inside = replace(kubectl, namespace=name)
    inside("patch", "configmap", "held", "--type=merge", "-p", NO_FINALIZERS, check=False)
    inside("delete", ",".join(RESOURCES.get(kind, f"{kind}s") for kind in KINDS), "--all", "--wait=false", check=False)
    inside("delete", "pods", "--all", "--grace-period=0", "--force", "--wait=false", check=False)
    kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


def apply(kubectl: Kubectl, item: dict[str, Any]) -> bool:
    """False if a TrainJob is refused because its webhook is not ready, or does not know the new runtime yet."""
    try:
        kubectl.apply(item)
    except RuntimeError as e:
        if any(text in str(e) for text in ("must be created before the TrainJob", "failed calling webhook")):
            return False
        raise
    return True
