"""A namespace of its own, with a claim that pods on both nodes can mount at once."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from lab.kubectl import Kubectl

VOLUME = "stoker"
KINDS = "trainjobs,jobs.batch.volcano.sh,jobsets,jobs.batch,pytorchjobs"


@contextmanager
def fresh(kubectl: Kubectl) -> Iterator[Kubectl]:
    """Speaks of this namespace."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    found = replace(kubectl, namespace=name)
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    found.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": VOLUME}, "spec": spec})
    try:
        yield found
    finally:
        # A pod of a Job is held until the Job's controller has counted it, which it does not in a namespace that ends.
        found("delete", f"{KINDS},pods", "--all", "--grace-period=0", "--force", "--wait=false")
        found("delete", "namespace", name, "--wait=false")
