"""A planned run as TorchX's AppDef, and as the Volcano Job that TorchX then makes of it. Pure."""

import copy
from typing import Any

from torchx.specs import AppDef, AppDryRunInfo, Resource, Role, VolumeMount, macros

from stoker.launch.backend import Submission
from stoker.launch.needs import TYPE_LABEL, Needs, needs
from stoker.launch.pod import NODE, VOLUME, Object, one_named
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.run import AnySpec

SCHEDULER = "kubernetes"
ROLE = "node"
NOT_OURS = ("TORCHX_RANK0_HOST",)  # of its own way for nodes to meet, which needs a plugin of Volcano's
UNIQUE_LABEL = "app.kubernetes.io/instance"


class Nodes(Role):  # type: ignore[misc]
    """Its pods need more than a role can say: TorchX lets it lay that over what is about to be sent."""

    def __init__(self, job: Object, **words: Any) -> None:
        super().__init__(**words)
        self.job = job

    def pre_proc(self, scheduler: str, dryrun_info: AppDryRunInfo[Any]) -> AppDryRunInfo[Any]:
        if scheduler != SCHEDULER:
            raise UserError(
                f"TorchX's scheduler {scheduler} cannot carry a run of Stoker's",
                remedy=f"Use -s {SCHEDULER}; on this machine run it with: stoker train",
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
    container = one_named(pod["containers"], contract.CONTAINER)
    volume = one_named(pod["volumes"], VOLUME)
    entrypoint, *args = (macros.replica_id if word == NODE else word for word in container["command"])
    nodes = spec.on.nodes
    role = Nodes(
        owner,
        name=ROLE,
        image=container["image"],
        entrypoint=entrypoint,
        args=args,
        env={one["name"]: one["value"] for one in container["env"] if "value" in one},
        num_replicas=nodes.most,
        min_replicas=None if nodes.fixed else nodes.least,
        resource=_resource(wanted),
        port_map={one["name"]: one["containerPort"] for one in container["ports"]},
        mounts=[VolumeMount(src=volume["persistentVolumeClaim"]["claimName"], dst_path=contract.MOUNT)],
    )
    return AppDef(name=submission.run.name, roles=[role])


def job(theirs: Object, ours: Object) -> Object:
    """Our Job as TorchX would have made it: a task for each node, which its verbs count on, in its queue.

    It goes by the run's name, which is as unique as the one that TorchX made up.
    """
    name, made_up = ours["metadata"]["name"], theirs["metadata"]["name"]
    [task] = ours["spec"]["tasks"]
    tasks = [
        task
        | {"name": one["name"], "replicas": 1, "template": _template(task["template"], one, index, made_up, name)}
        | {"minAvailable": one.get("minAvailable", 1)}
        for index, one in enumerate(theirs["spec"]["tasks"])
    ]
    spec = ours["spec"] | {"queue": theirs["spec"]["queue"], "tasks": tasks}
    if priority := theirs["spec"].get("priorityClassName"):
        spec["priorityClassName"] = priority
    return ours | {"spec": spec}


def _template(ours: Object, task: Object, index: int, made_up: str, name: str) -> Object:
    """With the labels, variables and service account that TorchX gives its pods."""
    theirs = task["template"]
    pod = copy.deepcopy(ours)
    pod["metadata"]["labels"] = theirs.metadata.labels | {UNIQUE_LABEL: name} | pod["metadata"]["labels"]
    if theirs.spec.service_account_name:
        pod["spec"] |= {"serviceAccountName": theirs.spec.service_account_name, "automountServiceAccountToken": True}
    container = one_named(pod["spec"]["containers"], contract.CONTAINER)
    said = {one.name: one.value.replace(made_up, name) for one in theirs.spec.containers[0].env}
    own = {one["name"]: one for one in container["env"]} | {contract.ENV_NODE: _variable(contract.ENV_NODE, str(index))}
    added = {key: _variable(key, value) for key, value in said.items() if key not in (*own, *NOT_OURS)}
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
