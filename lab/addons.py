"""What a bare cluster still lacks: a name service, a class of volumes, the training operator."""

from pathlib import Path
from typing import Any

import yaml

from lab import pki
from lab.kubectl import Kubectl
from lab.places import CONTROL, DNS_SERVICE, IMAGES, REGISTRY

STORAGE_CLASS = "shared"
OPERATOR = "training-operator"
NAMESPACE = "kubeflow"


def install(kubectl: Kubectl) -> None:
    kubectl.apply(*_dns(), _storage())


def operator(kubectl: Kubectl, manifests: Path) -> str:
    """The operator's own manifests, with our image for init containers. Gives the name of the image they ask for."""
    objects = list(yaml.safe_load_all(kubectl("kustomize", str(manifests / "overlays" / "standalone"))))
    [deployment] = [one for one in objects if one["kind"] == "Deployment"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    container["args"] = [*container.get("args", []), f"--pytorch-init-container-image={IMAGES['init']}"]
    [secret] = [one for one in objects if one["kind"] == "Secret"]
    secret["data"] = pki.webhook(f"{OPERATOR}.{NAMESPACE}.svc", f"{OPERATOR}-ca")
    container["readinessProbe"] |= {"initialDelaySeconds": 1, "periodSeconds": 1}
    kubectl.apply(*[one for one in objects if one["kind"] in {"Namespace", "CustomResourceDefinition"}])
    kubectl.apply(*objects)
    return str(container["image"])


def lab_name(image: str) -> str:
    """Where the lab's registry is asked for an image that goes by another registry's name."""
    host, _, rest = image.partition("/")
    return f"{REGISTRY}/{rest if '.' in host or ':' in host else image}"


def _dns() -> list[dict[str, Any]]:
    ports = [{"name": f"dns-{kind}", "protocol": kind.upper(), "port": 53} for kind in ("udp", "tcp")]
    name = {"name": "kube-dns", "namespace": "kube-system"}
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": name, "spec": {"clusterIP": DNS_SERVICE, "ports": ports}},
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**name, "labels": {"kubernetes.io/service-name": "kube-dns"}},
            "addressType": "IPv4",
            "ports": ports,
            "endpoints": [{"addresses": [CONTROL], "conditions": {"ready": True}}],
        },
    ]


def _storage() -> dict[str, Any]:
    """Volumes of this class are folders of this machine, so that pods of both nodes see the same files."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": STORAGE_CLASS,
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": "kubernetes.io/host-path",
        "reclaimPolicy": "Delete",
    }
