"""The NetworkPolicy of a run: its pods accept connections from each other, and from nobody else."""

from typing import Any

from stoker.launch.pod import Task
from stoker.spec import contract

Object = dict[str, Any]


def network_policy(task: Task) -> Object:
    """Pure. All ports: the collectives use those that the system chooses.

    Operators, logs and commands need no way in: they go through the API server and the node, which is always let in.
    """
    pods = {"matchLabels": {contract.LABEL_RUN: task.run}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": task.metadata,
        "spec": {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": pods}]}]},
    }
