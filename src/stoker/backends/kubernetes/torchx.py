"""A planned run as a TorchX AppDef, and as the Volcano Job that TorchX creates from it. Pure."""

import copy
from typing import Any

from torchx.specs import AppDef, AppDryRunInfo, Resource, Role, VolumeMount, macros

from stoker.backends.backend import Submission
from stoker.backends.kubernetes.needs import TYPE_LABEL, Needs, needs
from stoker.backends.kubernetes.pod import NODE, VOLUME, Object, find_named
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.on import kubernetes_on
from stoker.spec.run import AnySpec

SCHEDULER = "kubernetes"
ROLE = "node"
IGNORED_VARIABLES = ("TORCHX_RANK0_HOST",)  # for TorchX's own rendezvous, which needs a Volcano plugin
UNIQUE_LABEL = "app.kubernetes.io/instance"


class NodeRole(Role):  # type: ignore[misc]
    """Its pods need more than a Role can express: TorchX lets it change the request before it is sent."""

    def __init__(self, job: Object, **options: Any) -> None:
        super().__init__(**options)
        self.job = job

    def pre_proc(self, scheduler: str, dryrun_info: AppDryRunInfo[Any]) -> AppDryRunInfo[Any]:
        if scheduler != SCHEDULER:
            raise UserError(
                f"the TorchX scheduler {scheduler} cannot run a Stoker run",
                remedy=f"Use -s {SCHEDULER}; to run it on this machine: stoker train",
            )
        request = dryrun_info.request
        request.resource = job(request.resource, self.job)
        return dryrun_info


def app_def(spec: AnySpec, submission: Submission) -> AppDef:
    """`submission` is of a run with `on.job: vcjob`."""
    wanted = needs(spec, submission.run.name)
    owner = submission.objects[-1]
    [task] = owner["spec"]["tasks"]
    pod = task["template"]["spec"]
    container = find_named(pod["containers"], contract.CONTAINER)
    volume = find_named(pod["volumes"], VOLUME)
    entrypoint, *args = (macros.replica_id if argument == NODE else argument for argument in container["command"])
    nodes = kubernetes_on(spec).nodes
    role = NodeRole(
        owner,
        name=ROLE,
        image=container["image"],
        entrypoint=entrypoint,
        args=args,
        env={variable["name"]: variable["value"] for variable in container["env"] if "value" in variable},
        num_replicas=nodes.most,
        min_replicas=None if nodes.fixed else nodes.least,
        resource=_resource(wanted),
        port_map={port["name"]: port["containerPort"] for port in container["ports"]},
        mounts=[VolumeMount(src=volume["persistentVolumeClaim"]["claimName"], dst_path=contract.MOUNT)],
    )
    return AppDef(name=submission.run.name, roles=[role])


def job(torchx_job: Object, stoker_job: Object) -> Object:
    """Stoker's Volcano Job in the form of TorchX: one task per node, as TorchX's commands expect, in TorchX's queue.

    Its name is the run's name, which is as unique as the name that TorchX generates.
    """
    name, generated = stoker_job["metadata"]["name"], torchx_job["metadata"]["name"]
    [task] = stoker_job["spec"]["tasks"]
    tasks = [
        task
        | {
            "name": torchx_task["name"],
            "replicas": 1,
            "template": _template(task["template"], torchx_task["template"], index, generated, name),
        }
        | {"minAvailable": torchx_task.get("minAvailable", 1)}
        for index, torchx_task in enumerate(torchx_job["spec"]["tasks"])
    ]
    spec = stoker_job["spec"] | {"queue": torchx_job["spec"]["queue"], "tasks": tasks}
    if priority := torchx_job["spec"].get("priorityClassName"):
        spec["priorityClassName"] = priority
    return stoker_job | {"spec": spec}


def _template(template: Object, torchx_pod: Any, index: int, generated: str, name: str) -> Object:
    """The pod template with the labels, variables and service account that TorchX sets in its pods."""
    pod = copy.deepcopy(template)
    pod["metadata"]["labels"] = torchx_pod.metadata.labels | {UNIQUE_LABEL: name} | pod["metadata"]["labels"]
    if torchx_pod.spec.service_account_name:
        pod["spec"] |= {
            "serviceAccountName": torchx_pod.spec.service_account_name,
            "automountServiceAccountToken": True,
        }
    container = find_named(pod["spec"]["containers"], contract.CONTAINER)
    torchx_env = {
        variable.name: variable.value.replace(generated, name) for variable in torchx_pod.spec.containers[0].env
    }
    own = {variable["name"]: variable for variable in container["env"]}
    own[contract.ENV_NODE] = _variable(contract.ENV_NODE, str(index))
    added = {key: _variable(key, value) for key, value in torchx_env.items() if key not in (*own, *IGNORED_VARIABLES)}
    container["env"] = [*own.values(), *added.values()]
    return pod


def _variable(name: str, value: str) -> Object:
    return {"name": name, "value": value}


def _resource(wanted: Needs) -> Resource:
    instance = wanted.selectors.get(TYPE_LABEL)
    return Resource(
        cpu=wanted.cpu or 0,
        gpu=wanted.gpus,
        memMB=(wanted.memory or 0) // 10**6,
        capabilities={TYPE_LABEL: instance} if instance else {},
        devices={key: count for key, count in wanted.devices.items() if not key.endswith("/gpu")},
    )
