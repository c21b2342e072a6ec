"""A temporary namespace in the lab with the claim `training`, for one measurement."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from lab.kubectl import Kubectl


@contextmanager
def fresh_namespace(kubectl: Kubectl, *, prefix: str) -> Iterator[str]:
    namespace = f"{prefix}-{uuid.uuid4().hex[:6]}"
    kubectl("create", "namespace", namespace)
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    metadata = {"name": "training", "namespace": namespace}
    kubectl.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": claim})
    try:
        yield namespace
    finally:
        # A Job's pod keeps its finalizer until the Job controller counts it, which fails in a terminating namespace.
        kubectl("delete", "jobs,pytorchjobs", "--all", "-n", namespace, "--wait=false")
        kubectl("delete", "namespace", namespace, "--wait=false")
