"""New namespaces with a claim that pods on both nodes can mount at once."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from lab.kubectl import Kubectl

VOLUME = "stoker"
KINDS = "trainjobs,jobs.batch.volcano.sh,jobsets,jobs.batch,pytorchjobs"


@contextmanager
def fresh(kubectl: Kubectl) -> Iterator[Kubectl]:
    """Yield a kubectl for a new namespace, which is deleted afterwards."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    inside = replace(kubectl, namespace=name)
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    inside.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": VOLUME}, "spec": spec})
    try:
        yield inside
    finally:
        # A Job's pod keeps its finalizer until the Job controller counts it, which fails in a terminating namespace.
        inside("delete", f"{KINDS},pods", "--all", "--grace-period=0", "--force", "--wait=false")
        inside("delete", "namespace", name, "--wait=false")
