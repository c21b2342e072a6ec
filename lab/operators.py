"""Installs the operators: their own manifests with our certificates and images, fast probes and small requests."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lab import golang, pki
from lab.kubectl import Kubectl
from lab.places import IMAGES, REGISTRY

Object = dict[str, Any]
FIRST = ("Namespace", "CustomResourceDefinition")
HOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
FAST_PROBE = {"initialDelaySeconds": 1, "periodSeconds": 1, "timeoutSeconds": 10, "failureThreshold": 10}
REQUESTS = {"requests": {"cpu": "50m"}}  # without a request, training runs starve the operators of CPU
TIMEOUT_S = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Operator:
    namespace: str
    deployments: tuple[str, ...]
    service: str
    """The service of its webhook."""
    secret: str
    """The Secret with the certificate of the webhook."""
    read: Callable[[Kubectl], list[Object]]
    """Reads its manifests, with our changes."""


def install(kubectl: Kubectl) -> None:
    """Install all operators without waiting. Apply CRDs first: a controller exits if its kinds do not exist."""
    with ThreadPoolExecutor() as pool:
        manifests = pool.map(lambda name: _objects(kubectl, name), OPERATORS)
        objects = [item for manifest in manifests for item in manifest]
    kubectl.apply(*[item for item in objects if item["kind"] in FIRST], known=True)
    kubectl("wait", "--for=condition=Established", "crd", "--all", f"--timeout={TIMEOUT_S}s")
    rest = [item for item in objects if item["kind"] not in FIRST]
    kubectl.apply(*sorted(rest, key=lambda item: item["kind"] == "Deployment"), known=True)


def wait(kubectl: Kubectl) -> None:
    for operator in OPERATORS.values():
        for deployment in operator.deployments:
            target = [f"--namespace={operator.namespace}", f"deployment/{deployment}"]
            kubectl("rollout", "status", *target, f"--timeout={TIMEOUT_S}s")


def image(name: str) -> str:
    """The image of an operator in the lab's registry."""
    return f"{REGISTRY}/lab/{name}:1"


def _objects(kubectl: Kubectl, name: str) -> list[Object]:
    operator = OPERATORS[name]
    certificates = pki.webhook(f"{operator.service}.{operator.namespace}.svc", f"{name}-ca")
    own_secret = ("Secret", operator.secret)
    objects = [item for item in operator.read(kubectl) if (item["kind"], item["metadata"]["name"]) != own_secret]
    meta = {"name": operator.secret, "namespace": operator.namespace}
    objects.append({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": certificates})
    for item in objects:
        if item["kind"] in HOOKS:
            for hook in item["webhooks"]:
                hook["clientConfig"]["caBundle"] = certificates["ca.crt"]
        if item["kind"] == "Deployment":
            _tune(item)
    return objects


def _tune(deployment: Object) -> None:
    """One replica, frequent readiness probes and small resource requests: the tests need the CPU."""
    deployment["spec"]["replicas"] = 1
    pod = deployment["spec"]["template"]["spec"]
    pod["terminationGracePeriodSeconds"] = 1
    for container in pod["containers"]:
        name = PROGRAMS.get((deployment["metadata"]["name"], container["name"]), container["name"])
        container |= {"image": image(name), "imagePullPolicy": "IfNotPresent"}
        container["resources"] = REQUESTS
        if "readinessProbe" in container:
            container["readinessProbe"] |= FAST_PROBE


def _training(kubectl: Kubectl) -> list[Object]:
    objects = _kustomized(kubectl, golang.operator() / "manifests" / "overlays" / "standalone")
    [container] = _containers(objects)
    container["args"] = [*container.get("args", []), f"--pytorch-init-container-image={IMAGES['init']}"]
    return objects


def _jobset(kubectl: Kubectl) -> list[Object]:
    """Without its own certificate management, which takes a minute to start and watches every webhook."""
    objects = _kustomized(kubectl, golang.trainer() / "jobset-manifests" / "default")
    settings = {"leaderElection": {"leaderElect": False}, "internalCertManagement": {"enable": False}}
    _configure(objects, settings | {"metrics": {"bindAddress": "0"}, "featureGates": {"ElasticJobSet": True}})
    [container] = _containers(objects)
    container["args"] = ["--config=/controller_manager_config.yaml"]
    return objects


def _trainer(kubectl: Kubectl) -> list[Object]:
    objects = _kustomized(kubectl, golang.trainer() / "trainer-manifests" / "overlays" / "manager")
    settings = {"leaderElection": {"leaderElect": False}, "certManagement": {"enable": False}}
    _configure(objects, settings | {"metrics": {"bindAddress": "0"}})
    [container] = _containers(objects)
    container["args"] = ["--config=/controller_manager_config.yaml"]
    return objects


def _volcano(_kubectl: Kubectl) -> list[Object]:
    """Without the Job that creates certificates, and without the monitoring namespace."""
    text = (golang.volcano() / golang.VOLCANO_MANIFESTS).read_text()
    objects = [item for item in yaml.safe_load_all(text) if item]
    objects = [item for item in objects if not _is_excluded(item)]
    for container in _containers(objects):
        kept = [arg for arg in container["args"] if not arg.startswith(("-v=", "2>&1", "--enable-metrics"))]
        container["args"] = [*kept, "-v=1", "--enable-metrics=false"]
        if container["name"] == "admission":
            container["args"].pop()  # it has no such flag
            container["readinessProbe"] = {"tcpSocket": {"port": 8443}}
    return objects


def _is_excluded(item: Object) -> bool:
    name = str(item["metadata"]["name"])
    return name.startswith("volcano-admission-init") or name == "volcano-monitoring"


def _kustomized(kubectl: Kubectl, folder: Path) -> list[Object]:
    return list(yaml.safe_load_all(kubectl("kustomize", str(folder))))


def _containers(objects: list[Object]) -> list[Object]:
    pods = [item["spec"]["template"]["spec"] for item in objects if item["kind"] == "Deployment"]
    return [container for pod in pods for container in pod["containers"]]


def _configure(objects: list[Object], changes: Mapping[str, Any]) -> None:
    """Change the config file in its ConfigMap."""
    [config_map] = [item for item in objects if item["kind"] == "ConfigMap" and CONFIG in item.get("data", {})]
    config = yaml.safe_load(config_map["data"][CONFIG])
    config_map["data"][CONFIG] = yaml.safe_dump(config | changes)


CONFIG = "controller_manager_config.yaml"
PROGRAMS = {
    ("jobset-controller-manager", "manager"): "jobset",
    ("kubeflow-trainer-controller-manager", "manager"): "trainer",
}
OPERATORS = {
    "training-operator": Operator(
        namespace="kubeflow",
        deployments=("training-operator",),
        service="training-operator",
        secret="training-operator-webhook-cert",
        read=_training,
    ),
    "jobset": Operator(
        namespace="jobset-system",
        deployments=("jobset-controller-manager",),
        service="jobset-webhook-service",
        secret="jobset-webhook-server-cert",
        read=_jobset,
    ),
    "trainer": Operator(
        namespace="kubeflow-system",
        deployments=("kubeflow-trainer-controller-manager",),
        service="kubeflow-trainer-controller-manager",
        secret="kubeflow-trainer-webhook-cert",
        read=_trainer,
    ),
    "volcano": Operator(
        namespace="volcano-system",
        deployments=("volcano-admission", "volcano-controllers", "volcano-scheduler"),
        service="volcano-admission-service",
        secret="volcano-admission-secret",
        read=_volcano,
    ),
}
