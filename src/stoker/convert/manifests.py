"""PyTorchJob and ElasticJob manifests -> the values of a run file, and the outcome of each field."""

import re
from collections.abc import Callable
from typing import Any

from stoker.convert.pod import LAUNCHER_UNUSED, RENDEZVOUS, ConvertedPod, Values, read_pod
from stoker.convert.tracked import Field, FieldOutcome, TrackedDocument, dotted, leaves
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.load import clean_name

WRITTEN_BY_CLUSTER = "the cluster sets it"
CLUSTER_FIELDS = (
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "managedFields",
    "selfLink",
    "ownerReferences",
)
AUTO = ("auto", "gpu", "cpu")


def convert(kind: str, manifest: dict[str, Any]) -> tuple[Values, list[FieldOutcome]]:
    """`kind`: pytorchjob or elasticjob."""
    version, name, read = KINDS[kind]
    actual = manifest.get("kind"), manifest.get("apiVersion")
    if actual != (name, version):
        raise UserError(
            f"this is a {actual[0] or 'document without a kind'} of {actual[1] or 'no apiVersion'}",
            remedy=f"stoker import-config {kind} takes a {name} of {version}",
        )
    document = TrackedDocument(manifest)
    root = document.root
    root["apiVersion"].used("it identifies the manifest")
    root["kind"].used("it identifies the manifest")
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
    return {key: value for key, value in values.items() if value not in ([], {})}, document.report()


def _pytorchjob(spec: Field) -> tuple[ConvertedPod, Values]:
    replicas = spec["pytorchReplicaSpecs"]
    elastic = spec["elasticPolicy"]
    first, others = _replica_specs(replicas, ("Master", "Worker"))
    pod = read_pod(first["template"])
    on: Values = {"job": "pytorchjob"}
    count = sum(_number(replica["replicas"], 1) for replica in (first, *others))
    on["nodes"] = _nodes(elastic, pod.launch.options, count)
    for replica in (first, *others):
        replica["replicas"].used("on.nodes")
        replica["restartPolicy"].unused("the supervisor restarts workers, and the job replaces pods")
    for other in others:
        _compare(first["template"], other["template"])
    on |= _workers(spec["nprocPerNode"], elastic["nProcPerNode"])
    on |= _policy(spec["runPolicy"], elastic["maxRestarts"])
    for key in ("rdzvBackend", "rdzvHost", "rdzvPort", "rdzvId", "rdzvConf", "standalone"):
        elastic[key].unused(RENDEZVOUS)
    elastic["metrics"].unused(
        "set on.autoscale instead, such as {cpu: 80}, with a range in on.nodes and a number in on.cpu"
    )
    return pod, on


def _elasticjob(spec: Field) -> tuple[ConvertedPod, Values]:
    first, others = _replica_specs(spec["replicaSpecs"], ("Worker",))
    pod = read_pod(first["template"])
    count = _number(first["replicas"], 1)
    on: Values = {"job": "job", "nodes": _nodes(spec, pod.launch.options, count)}
    first["replicas"].used("on.nodes")
    first["restartPolicy"].unused("the supervisor restarts workers, and the job replaces pods")
    for other in others:
        other.unused("Stoker needs no rendezvous server")
    spec["rdzvEndpoint"].unused(RENDEZVOUS)
    on |= _policy(spec, Field(spec.document, (), None))
    return pod, on


KINDS: dict[str, tuple[str, str, Callable[[Field], tuple[ConvertedPod, Values]]]] = {
    "pytorchjob": ("kubeflow.org/v1", "PyTorchJob", _pytorchjob),
    "elasticjob": ("elastic.pytorch.org/v1alpha1", "ElasticJob", _elasticjob),
}


def _replica_specs(replicas: Field, wanted: tuple[str, ...]) -> tuple[Field, list[Field]]:
    specs = [replicas[name] for name in wanted if replicas[name]]
    if not specs:
        raise UserError(f"{dotted(replicas.path)} has no {wanted[-1]}", remedy="Add one, with its template")
    return specs[0], [*specs[1:], *(spec for name, spec in replicas.items() if name not in wanted)]


def _nodes(policy: Field, options: dict[str, str], count: int) -> Any:
    """The launcher's --nnodes overrides the policy: with a fixed number a job is not elastic."""
    least, most = policy["minReplicas"], policy["maxReplicas"]
    nnodes = options.get("nnodes")
    if nnodes:
        for field in (least, most):
            field.unused(f"--nnodes={nnodes} in the command overrides it")
        match = re.fullmatch(r"(\d+)(?::(\d+))?", nnodes)
        if not match:
            raise UserError(f"--nnodes={nnodes} is not a number of nodes", remedy="Write 2 or 1:4 there")
        low, high = int(match[1]), int(match[2] or match[1])
        return low if low == high else f"{low}..{max(low, min(high, count))}"
    low_number = _number(least, count)
    least.used("on.nodes")
    if _number(most, count) > count:
        most.unused(f"the job starts {count} replicas, so on.nodes ends there; raise on.nodes to start more")
    else:
        most.used("on.nodes")
    return count if low_number >= count else f"{low_number}..{count}"


def _workers(*fields: Field) -> Values:
    """From the first field that is set."""
    values: Values = {}
    for field in fields:
        if field:
            values.setdefault("workers", _count(str(field.used("on.workers"))))
    return values


def _count(value: str) -> int | str:
    return "auto" if value in AUTO else int(value) if value.isdecimal() else value


def _policy(policy: Field, restarts: Field) -> Values:
    on: Values = {}
    for field in (restarts, policy["backoffLimit"]):
        if field and "max_restarts" not in on:
            on["max_restarts"] = _number(field, 0)
            field.used("on.max_restarts")
        elif field:
            field.unused(f"on.max_restarts is {on['max_restarts']}, from another field")
    if priority := policy["schedulingPolicy"]["priorityClass"]:
        on["priority"] = str(priority.used("on.priority"))
    policy["cleanPodPolicy"].unused("the run directory keeps logs and records when the pods are deleted")
    policy["ttlSecondsAfterFinished"].unused("a finished run is kept until you delete it")
    policy["activeDeadlineSeconds"].unused("Stoker sets no deadline for a script; stop it with: stoker stop RUN")
    policy["suspend"].unused("a run starts when it is launched")
    policy["schedulingPolicy"].unused("a run starts when its smallest number of nodes is ready")
    return on


def _metadata(metadata: Field) -> Values:
    on: Values = {}
    if metadata["namespace"]:
        on["namespace"] = str(metadata["namespace"].used("on.namespace"))
    for key in CLUSTER_FIELDS:
        metadata[key].unused(WRITTEN_BY_CLUSTER)
    for key in ("labels", "annotations"):
        metadata[key].unused("Stoker labels the job itself; on.pod.metadata is for the pods")
    name = str(metadata["name"].used("name") or metadata["generateName"].used("name") or "run")
    return {"name": clean_name(name.lower())[: contract.MAX_RUN_NAME], "on": on}


def _launcher(options: dict[str, str]) -> Values:
    """The options of the command override the fields of the job, as in the job itself."""
    on: Values = {}
    if workers := options.get("nproc_per_node"):
        on["workers"] = _count(workers)
    if (restarts := options.get("max_restarts")) and restarts.isdecimal():
        on["max_restarts"] = int(restarts)
    return on


def _script(pod: ConvertedPod) -> str:
    """A relative path is beside the run file, or in the container's working directory."""
    script, folder = pod.launch.script, pod.working_dir
    return script if script.startswith("/") or not folder else f"{folder.rstrip('/')}/{script}"


def _compare(first: Field, other: Field) -> None:
    """All nodes of a run are alike: list the fields in which the second template differs."""
    for path in leaves(other.value):
        field, counterpart = other, first
        for key in path:
            field, counterpart = field[key], counterpart[key]
        if field.value == counterpart.value:
            field.used(f"the same as {dotted(counterpart.path)}")
        elif re.match(r"--?node[_-]rank", str(field.value)):
            field.unused(LAUNCHER_UNUSED["node_rank"])
        else:
            field.unused(f"all nodes of a run are alike, and {dotted(first.path)} differs")


def _number(field: Field, default: int) -> int:
    if not field:
        return default
    if isinstance(field.value, bool) or not str(field.value).isdecimal():
        raise UserError(f"{dotted(field.path)} is {field.value}, which is not a number", remedy="Write a number there")
    return int(field.value)
