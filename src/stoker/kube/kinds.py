"""The API paths of the kinds of objects that Stoker uses."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    version: str
    """`v1`, or group/version."""
    plural: str
    namespaced: bool = True
    shared: bool = False
    """Another group has a kind of the same name, and the plain name refers to that kind."""

    @property
    def key(self) -> str:
        """The name used here and in kubectl, with the group where two kinds share a name."""
        return f"{self.name}.{self.group}" if self.shared else self.name

    @property
    def group(self) -> str:
        return self.version.rpartition("/")[0]

    @property
    def root(self) -> str:
        return f"/apis/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str | None) -> str:
        """None: all namespaces."""
        within = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{self.root}{within}/{self.plural}"


KINDS = {
    kind.key: kind
    for kind in (
        Kind("Pod", "v1", "pods"),
        Kind("Service", "v1", "services"),
        Kind("Secret", "v1", "secrets"),
        Kind("ConfigMap", "v1", "configmaps"),
        Kind("ServiceAccount", "v1", "serviceaccounts"),
        Kind("PersistentVolumeClaim", "v1", "persistentvolumeclaims"),
        Kind("PersistentVolume", "v1", "persistentvolumes", namespaced=False),
        Kind("Namespace", "v1", "namespaces", namespaced=False),
        Kind("Node", "v1", "nodes", namespaced=False),
        Kind("Event", "v1", "events"),
        Kind("NetworkPolicy", "networking.k8s.io/v1", "networkpolicies"),
        Kind("EndpointSlice", "discovery.k8s.io/v1", "endpointslices"),
        Kind("Job", "batch/v1", "jobs"),
        Kind("Deployment", "apps/v1", "deployments"),
        Kind("StorageClass", "storage.k8s.io/v1", "storageclasses", namespaced=False),
        Kind("PriorityClass", "scheduling.k8s.io/v1", "priorityclasses", namespaced=False),
        Kind("Role", "rbac.authorization.k8s.io/v1", "roles"),
        Kind("RoleBinding", "rbac.authorization.k8s.io/v1", "rolebindings"),
        Kind("PyTorchJob", "kubeflow.org/v1", "pytorchjobs"),
        Kind("TrainJob", "trainer.kubeflow.org/v1alpha1", "trainjobs"),
        Kind("TrainingRuntime", "trainer.kubeflow.org/v1alpha1", "trainingruntimes"),
        Kind("ClusterTrainingRuntime", "trainer.kubeflow.org/v1alpha1", "clustertrainingruntimes", namespaced=False),
        Kind("JobSet", "jobset.x-k8s.io/v1alpha2", "jobsets"),
        Kind("Job", "batch.volcano.sh/v1alpha1", "jobs", shared=True),
        Kind("Queue", "scheduling.volcano.sh/v1beta1", "queues", namespaced=False),
        Kind("NodePool", "karpenter.sh/v1", "nodepools", namespaced=False),
    )
}


def key_of(object: Mapping[str, Any]) -> str:
    """The key of an object's kind."""
    name, version = str(object["kind"]), object["apiVersion"]
    return next((kind.key for kind in KINDS.values() if (kind.name, kind.version) == (name, version)), name)
