"""Kubeflow Trainer's TrainJob: over a TrainingRuntime of the run's own, or over one that the cluster has."""

from collections.abc import Sequence
from typing import Any

from stoker.launch.jobs import JobState
from stoker.launch.jobs.job import NODE, indexed, node
from stoker.launch.jobs.jobset import REPLICATED, counted, inner, jobs
from stoker.launch.jobs.jobset import inside as of_jobset
from stoker.launch.pod import Task, one_named
from stoker.launch.pod import template as pod_template
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.on import Nodes

__all__ = ["node"]  # as in a plain Job

Object = dict[str, Any]
KIND = "TrainJob"
NEEDS = ("TrainJob", "JobSet")
OPERATOR = "Kubeflow Trainer"
LASTS = False  # its runtime would go first, and without one its webhook refuses to let it go
MANIFESTS = "https://github.com/kubeflow/trainer.git/manifests/overlays/manager?ref=v2.3.0"
INSTALL = f"kubectl apply --server-side -k '{MANIFESTS}'"
API = "trainer.kubeflow.org/v1alpha1"
CONTAINER = "node"  # Trainer looks for this name
STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
PATCHED = (  # what a runtimePatch may say of a pod
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
OF_CONTAINER = ("volumeMounts", "securityContext")
OURS = ("envFrom", "ports")  # secrets, which the trainer tells one by one, and a port that works without a word
TOLD = ("name", "image", "command", "args", "env", "resources")  # what the trainer says instead
LEFT = ("restartPolicy", "enableServiceLinks", "automountServiceAccountToken")  # what the cluster's runtime decides


def manifest(task: Task) -> list[Object]:
    nodes = task.spec.on.nodes
    pod = _renamed(pod_template(task, node=NODE))
    if task.spec.on.runtime:
        return [_over_the_clusters(task, pod)]
    runtime = {
        "apiVersion": API,
        "kind": "TrainingRuntime",
        "metadata": task.metadata,
        "spec": {
            "mlPolicy": {"numNodes": nodes.most},
            "template": {"spec": jobs(task, indexed(task, pod, container=CONTAINER), labels=STEP)},
        },
    }
    spec = {"runtimeRef": _ref(task.run, own=True), "trainer": {"numNodes": nodes.most}}
    return [runtime, {"apiVersion": API, "kind": KIND, "metadata": task.metadata, "spec": spec}]


def state(job: Object) -> JobState:
    if job["metadata"].get("deletionTimestamp"):
        return JobState(state="stopping")
    status = job.get("status", {})
    for condition in status.get("conditions") or []:
        if condition["status"] == "True" and condition["type"] == "Complete":
            return JobState(state="done")
        if condition["status"] == "True" and condition["type"] == "Failed":
            return JobState(state="failed", reason=condition.get("message", ""))
    return JobState(state=counted(status.get("jobsStatus")))


def inside(run: str) -> list[tuple[str, str]]:
    return [("JobSet", run), *of_jobset(run)]


def template(objects: Sequence[Object]) -> Object:
    """Of a runtime of the cluster's: what the run lays over its pod."""
    first = objects[-2]["spec"] if len(objects) > 1 and objects[-2]["kind"] == "TrainingRuntime" else None
    if first:
        return _pod_of(first["template"]["spec"])
    spec = objects[-1]["spec"]
    [patch] = spec["runtimePatches"]
    pod = _pod_of(patch["trainingRuntimeSpec"]["template"]["spec"])
    [container] = pod["spec"]["containers"]
    return pod | {"spec": pod["spec"] | {"containers": [container | {"image": spec["trainer"]["image"]}]}}


def trials(objects: Sequence[Object]) -> list[Object]:
    """A TrainJob is refused until its runtime is there: what is tried then is the runtime, and the Job it leads to."""
    *others, owner = objects
    runtime = next((one for one in others if one["kind"] == "TrainingRuntime"), None)
    return [*others, inner(owner["metadata"], runtime["spec"]["template"]["spec"])] if runtime else list(objects)


def scaled(job: Object, nodes: Nodes) -> Object | None:  # noqa: ARG001 (as in all kinds)
    """The number of nodes of a TrainJob cannot be changed while it runs."""
    return None


def _over_the_clusters(task: Task, pod: Object) -> Object:
    """The pod that the runtime has, with what a run cannot do without laid over it."""
    container, spec = pod["spec"]["containers"][0], pod["spec"]
    _check(pod, task)
    values = container.get("env", [])
    if task.secret:
        values = [*values, *(_secret(task.secret, name) for name in task.spec.secrets)]
    trainer = {
        "numNodes": task.spec.on.nodes.most,
        "image": container["image"],
        "command": container["command"],
        "args": container.get("args", []),
        "env": values,
        "resourcesPerNode": container.get("resources", {}),
    }
    over = {key: spec[key] for key in PATCHED if key in spec}
    over["containers"] = [{"name": CONTAINER} | {key: container[key] for key in OF_CONTAINER if key in container}]
    patch = {"metadata": pod["metadata"], "spec": over}
    job = {"name": REPLICATED, "template": {"spec": {"template": patch}}}
    made: Object = {"runtimeRef": _ref(str(task.spec.on.runtime), own=False), "trainer": trainer}
    made["runtimePatches"] = [
        {
            "manager": f"{contract.MANAGED_BY}.dev/launch",
            "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}},
        }
    ]
    return {"apiVersion": API, "kind": KIND, "metadata": task.metadata, "spec": made}


def _check(pod: Object, task: Task) -> None:
    """That on.pod asks for nothing that cannot be laid over a runtime."""
    first, *others = pod["spec"]["containers"]
    asked = one_named(task.spec.on.pod.get("spec", {}).get("containers"), contract.CONTAINER)
    wrong = [f"spec.{key}" for key in pod["spec"] if key not in (*PATCHED, *LEFT, "containers")]
    wrong += [f"a container {one['name']}" for one in others]
    said = [key for key in first if key not in OURS] + [key for key in asked if key in OURS]
    wrong += [f"{key} of container {contract.CONTAINER}" for key in said if key not in (*OF_CONTAINER, *TOLD)]
    if wrong:
        where = "on.priority sets" if wrong[0] == "spec.priorityClassName" else "on.pod has"
        raise UserError(
            f"{where} {wrong[0]}, and a TrainJob cannot lay that over a runtime of the cluster's",
            remedy="Put it into the runtime, or leave on.runtime out: the run then has its own",
        )


def _renamed(pod: Object) -> Object:
    """Its container, which on.pod knows by the name that it has in all other kinds."""
    containers = [
        one | {"name": CONTAINER} if one["name"] == contract.CONTAINER else one for one in pod["spec"]["containers"]
    ]
    containers.sort(key=lambda one: one["name"] != CONTAINER)
    return pod | {"spec": pod["spec"] | {"containers": containers}}


def _secret(name: str, key: str) -> Object:
    return {"name": key, "valueFrom": {"secretKeyRef": {"name": name, "key": key}}}


def _ref(name: str, *, own: bool) -> Object:
    kind = "TrainingRuntime" if own else "ClusterTrainingRuntime"
    return {"apiGroup": API.partition("/")[0], "kind": kind, "name": name}


def _pod_of(jobset: Object) -> Object:
    [replicated] = [one for one in jobset["replicatedJobs"] if one["name"] == REPLICATED]
    found: Object = replicated["template"]["spec"]["template"]
    return found
