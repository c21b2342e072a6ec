"""PyTorchJob and ElasticJob manifests -> the values of a run file, and what became of each field."""

import re
from collections.abc import Callable
from typing import Any

from stoker.launch.import_config.fields import Field, Manifest, Outcome, dotted, leaves
from stoker.launch.import_config.pod import LAUNCHER_UNUSED, MEETING, Pod, Values, read_pod
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.load import clean_name

WRITTEN_BY_CLUSTER = "the cluster wrote it"
CLUSTERS_OWN = (
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "managedFields",
    "selfLink",
    "ownerReferences",
)
AUTO = ("auto", "gpu", "cpu")


def convert(kind: str, document: dict[str, Any]) -> tuple[Values, list[Outcome]]:
    """`kind`: pytorchjob or elasticjob."""
    version, name, read = KINDS[kind]
    found = document.get("kind"), document.get("apiVersion")
    if found != (name, version):
        raise UserError(
            f"this is a {found[0] or 'document without a kind'} of {found[1] or 'no apiVersion'}",
            remedy=f"stoker import-config {kind} takes a {name} of {version}",
        )
    manifest = Manifest(document)
    root = manifest.root
    root["apiVersion"].used("it says what the manifest is")
    root["kind"].used("it says what the manifest is")
    root["status"].unused(WRITTEN_BY_CLUSTER)
    pod, on = read(root["spec"])
    values = _metadata(root["metadata"])
    on = {"kind": "kubernetes"} | on | values.pop("on") | _launcher(pod.launch.options)
    values |= {
        "script": _script(pod),
        "args": pod.launch.args,
        "on": on | pod.on,
        "env": pod.env,
        "secrets": pod.secrets,
    }
    return {key: value for key, value in values.items() if value not in ([], {})}, manifest.report()


def _pytorchjob(spec: Field) -> tuple[Pod, Values]:
    replicas = spec["pytorchReplicaSpecs"]
    elastic = spec["elasticPolicy"]
    first, others = _replica_specs(replicas, ("Master", "Worker"))
    pod = read_pod(first["template"])
    on: Values = {"job": "pytorchjob"}
    count = sum(_whole(one["replicas"], 1) for one in (first, *others))
    on["nodes"] = _nodes(elastic, pod.launch.options, count)
    for one in (first, *others):
        one["replicas"].used("on.nodes")
        one["restartPolicy"].unused("the supervisor restarts workers, and the job replaces pods")
    for other in others:
        _compare(first["template"], other["template"])
    on |= _workers(spec["nprocPerNode"], elastic["nProcPerNode"])
    on |= _policy(spec["runPolicy"], elastic["maxRestarts"])
    for key in ("rdzvBackend", "rdzvHost", "rdzvPort", "rdzvId", "rdzvConf", "standalone"):
        elastic[key].unused(MEETING)
    elastic["metrics"].unused(
        "on.autoscale, such as {cpu: 80}, asks for it, where on.nodes is a range and on.cpu is set"
    )
    return pod, on


def _elasticjob(spec: Field) -> tuple[Pod, Values]:
    first, others = _replica_specs(spec["replicaSpecs"], ("Worker",))
    pod = read_pod(first["template"])
    count = _whole(first["replicas"], 1)
    on: Values = {"job": "job", "nodes": _nodes(spec, pod.launch.options, count)}
    first["replicas"].used("on.nodes")
    first["restartPolicy"].unused("the supervisor restarts workers, and the job replaces pods")
    for other in others:
        other.unused("Stoker needs no server for its nodes to meet")
    spec["rdzvEndpoint"].unused(MEETING)
    on |= _policy(spec, Field(spec.manifest, (), None))
    return pod, on


KINDS: dict[str, tuple[str, str, Callable[[Field], tuple[Pod, Values]]]] = {
    "pytorchjob": ("kubeflow.org/v1", "PyTorchJob", _pytorchjob),
    "elasticjob": ("elastic.pytorch.org/v1alpha1", "ElasticJob", _elasticjob),
}


def _replica_specs(replicas: Field, wanted: tuple[str, ...]) -> tuple[Field, list[Field]]:
    found = [replicas[name] for name in wanted if replicas[name]]
    if not found:
        raise UserError(f"{dotted(replicas.path)} has no {wanted[-1]}", remedy="Name one, with its template")
    return found[0], [*found[1:], *(one for name, one in replicas.items() if name not in wanted)]


def _nodes(policy: Field, options: dict[str, str], count: int) -> Any:
    """The launcher's own --nnodes overrules the policy: a job with a fixed one is not elastic, whatever that says."""
    least, most = policy["minReplicas"], policy["maxReplicas"]
    said = options.get("nnodes")
    if said:
        for one in (least, most):
            one.unused(f"--nnodes={said} in the command overrules it")
        found = re.fullmatch(r"(\d+)(?::(\d+))?", said)
        if not found:
            raise UserError(f"--nnodes={said} is no number of nodes", remedy="Write 2 or 1:4 there")
        low, high = int(found[1]), int(found[2] or found[1])
        return low if low == high else f"{low}..{max(low, min(high, count))}"
    low_number = _whole(least, count)
    least.used("on.nodes")
    if _whole(most, count) > count:
        most.unused(f"on.nodes ends at the {count} replicas that are started; write more there to start more")
    else:
        most.used("on.nodes")
    return count if low_number >= count else f"{low_number}..{count}"


def _workers(*said: Field) -> Values:
    found: Values = {}
    for one in said:
        if one:
            found.setdefault("workers", _count(str(one.used("on.workers"))))
    return found


def _count(value: str) -> int | str:
    return "auto" if value in AUTO else int(value) if value.isdecimal() else value


def _policy(policy: Field, restarts: Field) -> Values:
    on: Values = {}
    for one in (restarts, policy["backoffLimit"]):
        if one and "max_restarts" not in on:
            on["max_restarts"] = _whole(one, 0)
            one.used("on.max_restarts")
        elif one:
            one.unused(f"on.max_restarts is {on['max_restarts']}, from elsewhere")
    if priority := policy["schedulingPolicy"]["priorityClass"]:
        on["priority"] = str(priority.used("on.priority"))
    policy["cleanPodPolicy"].unused("logs and records outlive the pods in the run directory")
    policy["ttlSecondsAfterFinished"].unused("a finished run is kept until you delete it")
    policy["activeDeadlineSeconds"].unused("a script has no end of Stoker's making; stop it with: stoker stop RUN")
    policy["suspend"].unused("a run that is launched runs")
    policy["schedulingPolicy"].unused("a run's pods start when its fewest nodes are there")
    return on


def _metadata(metadata: Field) -> Values:
    on: Values = {}
    if metadata["namespace"]:
        on["namespace"] = str(metadata["namespace"].used("on.namespace"))
    for key in CLUSTERS_OWN:
        metadata[key].unused(WRITTEN_BY_CLUSTER)
    for key in ("labels", "annotations"):
        metadata[key].unused("Stoker labels the job itself; on.pod.metadata is for the pods")
    name = str(metadata["name"].used("name") or metadata["generateName"].used("name") or "run")
    return {"name": clean_name(name.lower())[: contract.LONGEST_RUN], "on": on}


def _launcher(options: dict[str, str]) -> Values:
    """What the command says overrules what the job says, as it does where the job runs now."""
    on: Values = {}
    if workers := options.get("nproc_per_node"):
        on["workers"] = _count(workers)
    if (restarts := options.get("max_restarts")) and restarts.isdecimal():
        on["max_restarts"] = int(restarts)
    return on


def _script(pod: Pod) -> str:
    """A relative one is beside the run file, or where the container works."""
    folder = next(
        (
            str(one["workingDir"])
            for one in pod.on.get("pod", {}).get("spec", {}).get("containers", [])
            if "workingDir" in one
        ),
        None,
    )
    script = pod.launch.script
    return script if script.startswith("/") or not folder else f"{folder.rstrip('/')}/{script}"


def _compare(first: Field, other: Field) -> None:
    """All nodes of a run are alike: what the second template says otherwise is named."""
    for path in leaves(other.value):
        one, same = other, first
        for key in path:
            one, same = one[key], same[key]
        if one.value == same.value:
            one.used(f"the same as {dotted(same.path)}")
        elif re.match(r"--?node[_-]rank", str(one.value)):
            one.unused(LAUNCHER_UNUSED["node_rank"])
        else:
            one.unused(f"all nodes of a run are alike, and {dotted(first.path)} says otherwise")


def _whole(one: Field, default: int) -> int:
    if not one:
        return default
    if isinstance(one.value, bool) or not str(one.value).isdecimal():
        raise UserError(f"{dotted(one.path)} is {one.value}, which is no number", remedy="Write a number there")
    return int(one.value)
