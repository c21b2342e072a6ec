"""Adds DNS and a storage class to the cluster."""

from typing import Any

from lab.kubectl import Kubectl
from lab.places import CONTROL, DNS_SERVICE

STORAGE_CLASS = "shared"


def install(kubectl: Kubectl) -> None:
    kubectl.apply(*_dns(), _storage())


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
    """Volumes of this class are folders on this machine, so that pods on both nodes see the same files."""
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
