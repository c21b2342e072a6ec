"""Kubeflow Trainer's TrainJob, with a TrainingRuntime of its own or with one of the cluster."""

from collections.abc import Sequence
from typing import Any

from stoker.backends.kubernetes.jobs import JobState
from stoker.backends.kubernetes.jobs.job import NODE, indexed, node
from stoker.backends.kubernetes.jobs.jobset import REPLICATED, inner_job, jobset_spec, ready_state
from stoker.backends.kubernetes.jobs.jobset import inner_objects as jobset_inner_objects
from stoker.backends.kubernetes.pod import Task, find_named
from stoker.backends.kubernetes.pod import template as pod_template
from stoker.rundir.state import RunState
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.on import Nodes, kubernetes_on

__all__ = ["node"]  # as in a plain Job

Object = dict[str, Any]
KIND = "TrainJob"
NEEDS = ("TrainJob", "JobSet")
OPERATOR = "Kubeflow Trainer"
FOREGROUND = False  # its runtime would be deleted first, and without one its webhook refuses to delete it
MANIFESTS = "https://github.com/kubeflow/trainer.git/manifests/overlays/manager?ref=v2.3.0"
INSTALL = f"kubectl apply --server-side -k '{MANIFESTS}'"
API = "trainer.kubeflow.org/v1alpha1"
CONTAINER = "node"  # Trainer looks for this name
STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
PATCHABLE = (  # fields of a pod that a runtimePatch may set
    "serviceAccountName",
    "imagePullSecrets",
    "nodeSelector",
    "affinity",
    "tolerations",
    "volumes",
    "securityContext",
    "schedulingGates",
    "terminationGracePeriodSeconds",
)
PATCHABLE_IN_CONTAINER = ("volumeMounts", "securityContext")
OMITTED = ("envFrom", "ports")  # secrets, which `trainer.env` lists one by one, and a port that need not be declared
SET_BY_TRAINER = ("name", "image", "command", "args", "env", "resources")  # fields of `trainer`
SET_BY_RUNTIME = ("restartPolicy", "enableServiceLinks", "automountServiceAccountToken")


def manifest(task: Task) -> list[Object]:
    nodes = kubernetes_on(task.spec).nodes
    pod = _renamed(pod_template(task, node=NODE))
    if kubernetes_on(task.spec).runtime:
        return [_with_cluster_runtime(task, pod)]
    runtime = {
        "apiVersion": API,
        "kind": "TrainingRuntime",
        "metadata": task.metadata,
        "spec": {
            "mlPolicy": {"numNodes": nodes.most},
            "template": {"spec": jobset_spec(task, indexed(task, pod, container=CONTAINER), labels=STEP)},
        },
    }
    spec = {"runtimeRef": _ref(task.run, own=True), "trainer": {"numNodes": nodes.most}}
    return [runtime, {"apiVersion": API, "kind": KIND, "metadata": task.metadata, "spec": spec}]


def state(job: Object) -> JobState:
    if job["metadata"].get("deletionTimestamp"):
        return JobState(state=RunState.STOPPING)
    status = job.get("status", {})
    for condition in status.get("conditions") or []:
        if condition["status"] == "True" and condition["type"] == "Complete":
            return JobState(state=RunState.DONE)
        if condition["status"] == "True" and condition["type"] == "Failed":
            return JobState(state=RunState.FAILED, reason=condition.get("message", ""))
    return JobState(state=ready_state(status.get("jobsStatus")))


def inner_objects(run: str) -> list[tuple[str, str]]:
    return [("JobSet", run), *jobset_inner_objects(run)]


def template(objects: Sequence[Object]) -> Object:
    """With a runtime of the cluster: the patch of its pod."""
    first = objects[-2]["spec"] if len(objects) > 1 and objects[-2]["kind"] == "TrainingRuntime" else None
    if first:
        return _pod_of(first["template"]["spec"])
    spec = objects[-1]["spec"]
    [patch] = spec["runtimePatches"]
    pod = _pod_of(patch["trainingRuntimeSpec"]["template"]["spec"])
    [container] = pod["spec"]["containers"]
    return pod | {"spec": pod["spec"] | {"containers": [container | {"image": spec["trainer"]["image"]}]}}


def dry_run_objects(objects: Sequence[Object]) -> list[Object]:
    """A TrainJob is refused until its runtime exists: checks the runtime instead, and the Job that results from it."""
    *others, owner = objects
    runtime = next((manifest for manifest in others if manifest["kind"] == "TrainingRuntime"), None)
    return [*others, inner_job(owner["metadata"], runtime["spec"]["template"]["spec"])] if runtime else list(objects)


def scale_patch(job: Object, nodes: Nodes) -> Object | None:  # noqa: ARG001 (other kinds use them)
    """A TrainJob cannot be resized while it runs."""
    return None


def _with_cluster_runtime(task: Task, pod: Object) -> Object:
    """Patches the pod of the runtime with what the run needs."""
    container, spec = pod["spec"]["containers"][0], pod["spec"]
    _check(pod, task)
    variables = container.get("env", [])
    if task.secret:
        variables = [*variables, *(_secret(task.secret, name) for name in task.spec.secrets)]
    trainer = {
        "numNodes": kubernetes_on(task.spec).nodes.most,
        "image": container["image"],
        "command": container["command"],
        "args": container.get("args", []),
        "env": variables,
        "resourcesPerNode": container.get("resources", {}),
    }
    pod_patch: Object = {key: spec[key] for key in PATCHABLE if key in spec}
    pod_patch["containers"] = [
        {"name": CONTAINER} | {key: container[key] for key in PATCHABLE_IN_CONTAINER if key in container}
    ]
    patch = {"metadata": pod["metadata"], "spec": pod_patch}
    job = {"name": REPLICATED, "template": {"spec": {"template": patch}}}
    train_job: Object = {"runtimeRef": _ref(str(kubernetes_on(task.spec).runtime), own=False), "trainer": trainer}
    train_job["runtimePatches"] = [
        {
            "manager": f"{contract.MANAGED_BY}.dev/launch",
            "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}},
        }
    ]
    return {"apiVersion": API, "kind": KIND, "metadata": task.metadata, "spec": train_job}


def _check(pod: Object, task: Task) -> None:
    """Raises UserError if on.pod sets something that a TrainJob cannot patch into a runtime."""
    first, *others = pod["spec"]["containers"]
    own = find_named(kubernetes_on(task.spec).pod.get("spec", {}).get("containers"), contract.CONTAINER)
    refused = [f"spec.{key}" for key in pod["spec"] if key not in (*PATCHABLE, *SET_BY_RUNTIME, "containers")]
    refused += [f"a container {container['name']}" for container in others]
    fields = [key for key in first if key not in OMITTED] + [key for key in own if key in OMITTED]
    refused += [
        f"{key} of container {contract.CONTAINER}"
        for key in fields
        if key not in (*PATCHABLE_IN_CONTAINER, *SET_BY_TRAINER)
    ]
    if refused:
        where = "on.priority sets" if refused[0] == "spec.priorityClassName" else "on.pod has"
        raise UserError(
            f"{where} {refused[0]}, and a TrainJob cannot patch that into a runtime of the cluster",
            remedy="Set it in the runtime, or leave on.runtime out: the run then gets its own",
        )


def _renamed(pod: Object) -> Object:
    """With the container name that Trainer requires; on.pod uses the name of the other kinds."""
    containers = [
        container | {"name": CONTAINER} if container["name"] == contract.CONTAINER else container
        for container in pod["spec"]["containers"]
    ]
    containers.sort(key=lambda container: container["name"] != CONTAINER)
    return pod | {"spec": pod["spec"] | {"containers": containers}}


def _secret(name: str, key: str) -> Object:
    return {"name": key, "valueFrom": {"secretKeyRef": {"name": name, "key": key}}}


def _ref(name: str, *, own: bool) -> Object:
    kind = "TrainingRuntime" if own else "ClusterTrainingRuntime"
    return {"apiGroup": API.partition("/")[0], "kind": kind, "name": name}


def _pod_of(jobset: Object) -> Object:
    [replicated] = [job for job in jobset["replicatedJobs"] if job["name"] == REPLICATED]
    pod: Object = replicated["template"]["spec"]["template"]
    return pod
