"""The operators of the lab: their own manifests, with our certificates and images, ready soon and lean at rest."""

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
QUICK = {"initialDelaySeconds": 1, "periodSeconds": 1, "timeoutSeconds": 10, "failureThreshold": 10}
SHARE = {"requests": {"cpu": "50m"}}  # without any, runs that train leave an operator next to nothing of a processor
PATIENCE_S = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Operator:
    namespace: str
    deployments: tuple[str, ...]
    service: str
    """Of its webhook."""
    secret: str
    """Where its pods find the certificate for it."""
    read: Callable[[Kubectl], list[Object]]
    """Its own manifests, and what of them is changed here."""


def install(kubectl: Kubectl) -> None:
    """All of them; they are not waited for. Their kinds come first: a controller that starts without them dies."""
    with ThreadPoolExecutor() as pool:
        made = pool.map(lambda name: _objects(kubectl, name), OPERATORS)
        objects = [one for some in made for one in some]
    kubectl.apply(*[one for one in objects if one["kind"] in FIRST], known=True)
    kubectl("wait", "--for=condition=Established", "crd", "--all", f"--timeout={PATIENCE_S}s")
    rest = [one for one in objects if one["kind"] not in FIRST]
    kubectl.apply(*sorted(rest, key=lambda one: one["kind"] == "Deployment"), known=True)


def wait(kubectl: Kubectl) -> None:
    for one in OPERATORS.values():
        for deployment in one.deployments:
            where = [f"--namespace={one.namespace}", f"deployment/{deployment}"]
            kubectl("rollout", "status", *where, f"--timeout={PATIENCE_S}s")


def image(name: str) -> str:
    """Of an operator's program, in the lab's registry."""
    return f"{REGISTRY}/lab/{name}:1"


def _objects(kubectl: Kubectl, name: str) -> list[Object]:
    one = OPERATORS[name]
    certified = pki.webhook(f"{one.service}.{one.namespace}.svc", f"{name}-ca")
    objects = [each for each in one.read(kubectl) if (each["kind"], each["metadata"]["name"]) != ("Secret", one.secret)]
    meta = {"name": one.secret, "namespace": one.namespace}
    objects.append({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": certified})
    for each in objects:
        if each["kind"] in HOOKS:
            for hook in each["webhooks"]:
                hook["clientConfig"]["caBundle"] = certified["ca.crt"]
        if each["kind"] == "Deployment":
            _lean(each)
    return objects


def _lean(deployment: Object) -> None:
    """Ready as soon as it is, and hardly any room kept for it: tests need it."""
    deployment["spec"]["replicas"] = 1
    pod = deployment["spec"]["template"]["spec"]
    pod["terminationGracePeriodSeconds"] = 1
    for container in pod["containers"]:
        name = PROGRAMS.get((deployment["metadata"]["name"], container["name"]), container["name"])
        container |= {"image": image(name), "imagePullPolicy": "IfNotPresent"}
        container["resources"] = SHARE
        if "readinessProbe" in container:
            container["readinessProbe"] |= QUICK


def _training(kubectl: Kubectl) -> list[Object]:
    objects = _kustomized(kubectl, golang.operator() / "manifests" / "overlays" / "standalone")
    [container] = _containers(objects)
    container["args"] = [*container.get("args", []), f"--pytorch-init-container-image={IMAGES['init']}"]
    return objects


def _jobset(kubectl: Kubectl) -> list[Object]:
    """Its own care for certificates is a minute of waiting, and a watch on every webhook."""
    objects = _kustomized(kubectl, golang.trainer() / "jobset-manifests" / "default")
    own = {"leaderElection": {"leaderElect": False}, "internalCertManagement": {"enable": False}}
    _configure(objects, own | {"metrics": {"bindAddress": "0"}, "featureGates": {"ElasticJobSet": True}})
    [container] = _containers(objects)
    container["args"] = ["--config=/controller_manager_config.yaml"]
    return objects


def _trainer(kubectl: Kubectl) -> list[Object]:
    objects = _kustomized(kubectl, golang.trainer() / "trainer-manifests" / "overlays" / "manager")
    own = {"leaderElection": {"leaderElect": False}, "certManagement": {"enable": False}}
    _configure(objects, own | {"metrics": {"bindAddress": "0"}})
    [container] = _containers(objects)
    container["args"] = ["--config=/controller_manager_config.yaml"]
    return objects


def _volcano(_kubectl: Kubectl) -> list[Object]:
    """Without the Job that makes certificates, and without the namespace for monitoring."""
    text = (golang.volcano() / golang.VOLCANO_MANIFESTS).read_text()
    objects = [one for one in yaml.safe_load_all(text) if one]
    objects = [one for one in objects if not _left_out(one)]
    for container in _containers(objects):
        kept = [word for word in container["args"] if not word.startswith(("-v=", "2>&1", "--enable-metrics"))]
        container["args"] = [*kept, "-v=1", "--enable-metrics=false"]
        if container["name"] == "admission":
            container["args"].pop()  # it knows none
            container["readinessProbe"] = {"tcpSocket": {"port": 8443}}
    return objects


def _left_out(one: Object) -> bool:
    name = str(one["metadata"]["name"])
    return name.startswith("volcano-admission-init") or name == "volcano-monitoring"


def _kustomized(kubectl: Kubectl, folder: Path) -> list[Object]:
    return list(yaml.safe_load_all(kubectl("kustomize", str(folder))))


def _containers(objects: list[Object]) -> list[Object]:
    pods = [one["spec"]["template"]["spec"] for one in objects if one["kind"] == "Deployment"]
    return [container for pod in pods for container in pod["containers"]]


def _configure(objects: list[Object], changes: Mapping[str, Any]) -> None:
    """In the file that its ConfigMap holds."""
    [settings] = [one for one in objects if one["kind"] == "ConfigMap" and CONFIG in one.get("data", {})]
    config = yaml.safe_load(settings["data"][CONFIG])
    settings["data"][CONFIG] = yaml.safe_dump(config | changes)


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
