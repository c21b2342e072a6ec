"""What is checked before a run is launched in a cluster: the objects that it names, room for its pods, its volume."""

from collections.abc import Callable
from math import ceil
from pathlib import Path

from stoker.backends.kubernetes import etcd
from stoker.backends.kubernetes.inventory import Inventory, Machine, is_lasting, quantity
from stoker.backends.kubernetes.jobs import job_kind
from stoker.backends.kubernetes.jobs.vcjob import DEFAULT_QUEUE
from stoker.backends.kubernetes.needs import TYPE_LABEL, Needs
from stoker.backends.kubernetes.place import ClusterPlace
from stoker.backends.kubernetes.volume.reader import volume_claim
from stoker.kube import Cluster, Forbidden
from stoker.rundir import RunDir
from stoker.spec import contract
from stoker.spec.code import is_code
from stoker.spec.errors import UserError
from stoker.spec.on import KubernetesOn, kubernetes_on
from stoker.spec.run import AnySpec, ScriptSpec

KUEUE = "kueue.x-k8s.io"  # its kinds are read in the version that the cluster prefers
MAX_NAMES = 10  # of existing objects, in a remedy
Amounts = dict[str, float]
"""Resource -> how much of it: cores, bytes, devices."""
HUGE_PAGES = "hugepages-2Mi"
FORMATS: dict[str, Callable[[float], str]] = {
    "cpu": lambda value: f"{value:g} cores",
    "memory": lambda value: f"{value / 2**30:.1f} GiB of memory",
    HUGE_PAGES: lambda value: f"{value / 2**30:.1f} GiB of huge pages",
}


def check_objects(cluster: Cluster, on: KubernetesOn, job: str) -> None:
    """Raises UserError if an object that the run names does not exist. `job`: the kind of job."""
    _check_namespace(cluster)
    _check_operator(cluster, job)
    _check_claim(cluster, on)
    _check_named(cluster, on)
    etcd.check(cluster, on)
    if job == "vcjob":
        _check_volcano_queue(cluster, on)
    elif on.queue:
        _check_kueue_queue(cluster, on.queue)


def check_fits(needs: Needs, inventory: Inventory, *, nodes: int) -> list[str]:
    """Raises UserError if the pods fit no node; warnings if they may have to wait. Pure."""
    if not inventory.known:
        return []
    requested = _requested(needs)
    allowed = inventory.fitting(needs)
    if not allowed and inventory.elastic:
        return ["the cluster has no node now that its pods may run on: they wait until one is added"]
    if not inventory.kinds:
        raise UserError("the cluster has no nodes", remedy="Add some; list them with: kubectl get nodes")
    if not allowed:
        raise UserError(f"no node of the cluster {_selection(needs)}", remedy=_selection_remedy(needs, inventory))
    fitting = [(machine, count) for machine, count in allowed if not _missing(machine, requested)]
    if not fitting:
        best = min((machine for machine, _ in allowed), key=lambda machine: len(_missing(machine, requested)))
        resource = _missing(best, requested)[0]
        largest = _format(resource, max(machine.offers.get(resource, 0) for machine, _ in allowed))
        problem = f"a pod needs {_format(resource, requested[resource])}, and the largest node has {largest}"
        if inventory.elastic:
            return [f"{problem}: it waits until a larger one is added"]
        raise UserError(problem, remedy=_smaller_request(resource))
    warnings = _check_workers(needs, allowed, elastic=inventory.elastic)
    room = _room(fitting, requested)
    if requested and room < nodes:
        warnings.append(f"the cluster has room for {room} of its {nodes} nodes now: the other pods wait")
    return warnings


def check_schedulable(needs: Needs, inventory: Inventory, *, kubectl: str) -> list[str]:
    """Raises UserError if all nodes are cordoned: not even the pod that uploads the run's files would start. Pure.

    A warning if nodes may be added, or if none is ready for another reason.
    """
    allowed = inventory.fitting(needs)
    if not inventory.known or not allowed or any(machine.ready for machine, _ in allowed):
        return []
    total = sum(count for _, count in allowed)
    subject = (
        "the node that its pods may run on is" if total == 1 else f"all {total} nodes that its pods may run on are"
    )
    cordoned = [machine.name for machine, _ in allowed if machine.cordoned]
    if not cordoned:
        return [f"{subject} not ready, such as {allowed[0][0].name}: its pods wait. See: {kubectl} describe nodes"]
    problem = f"{subject} cordoned{' or not ready' * (len(cordoned) < len(allowed))}"
    remedy = f"{kubectl} uncordon {cordoned[0]}"
    if inventory.elastic:
        return [f"{problem}: its pods wait until a node is added, or uncordoned with: {remedy}"]
    raise UserError(problem, remedy=f"Run: {remedy}")


def check_room(needs: Needs, inventory: Inventory, *, nodes: int) -> None:
    """Raises UserError if the cluster has no room for the new nodes and the run would have to stop for them. Pure."""
    requested = _requested(needs)
    if not inventory.known or inventory.elastic or not requested:
        return
    fitting = [(machine, count) for machine, count in inventory.fitting(needs) if not _missing(machine, requested)]
    if (room := _room(fitting, requested)) < nodes:
        raise UserError(
            f"the cluster has room for {room} of the {nodes} nodes that it needs, and the run would stop to wait",
            remedy="Ask for fewer, or add nodes first; list them with: kubectl get nodes",
        )


def other_volume_warnings(run: RunDir, place: ClusterPlace) -> list[str]:
    """A warning if a run resumes on another volume than the volume that has its checkpoints."""
    old, step = run.place(ClusterPlace), ((run.seen() or {}).get("view") or {}).get("step")
    if old is None or not step or (old.namespace, old.volume) == (place.namespace, place.volume):
        return []
    return [
        f"it was trained to step {step} on volume {old.volume} of namespace {old.namespace}, and its checkpoints stay "
        f"there: on volume {place.volume} of namespace {place.namespace} it starts at step 0, unless "
        f"{contract.VOLUME_RUNS}/{place.run} was copied to it"
    ]


def local_code_warnings(spec: AnySpec) -> list[str]:
    """A warning if code that is on this machine is expected in the image: nothing copies it there."""
    if kubernetes_on(spec).registry:
        return []
    if isinstance(spec, ScriptSpec):
        local = [f"script {spec.script}"] if Path(spec.script).exists() else []
    else:
        local = [name for name in (spec.model.family, *spec.callbacks) if is_code(name)]
    return [f"{code} must be in the image: without on.registry your code is not added to it" for code in local]


def _check_namespace(cluster: Cluster) -> None:
    name = cluster.namespace
    try:
        namespace = cluster.get("Namespace", name)
    except Forbidden:
        return  # the dry run of the objects reports it
    if namespace is None:
        raise UserError(
            f"{cluster.display_name} has no namespace '{name}'",
            remedy=f"Set on.namespace, or create it: {cluster.kubectl_anywhere} create namespace {name}",
        )


def _check_operator(cluster: Cluster, job: str) -> None:
    kind = job_kind(job)
    for name in kind.NEEDS:
        if not cluster.serves(name):
            raise UserError(
                f"on.job is {job}, and {cluster.display_name} knows no {name}: its operator is not installed",
                remedy=f"Set on.job=job, which needs none, or install it: {kind.INSTALL}",
            )


def _check_claim(cluster: Cluster, on: KubernetesOn) -> None:
    modes = volume_claim(cluster, str(on.volume))["spec"].get("accessModes", [])
    if on.nodes.most > 1 and "ReadWriteMany" not in modes:
        raise UserError(
            f"on.nodes is {on.nodes}, and volume claim '{on.volume}' may be used by one node only ({', '.join(modes)})",
            remedy="Set on.volume to a claim with ReadWriteMany (EFS, FSx, Filestore, NFS), or on.nodes=1",
        )


def _check_named(cluster: Cluster, on: KubernetesOn) -> None:
    """Objects that the pods refer to: Kubernetes would report them missing only when it starts the pods."""
    references = [("ServiceAccount", "service_account", on.service_account), ("PriorityClass", "priority", on.priority)]
    references += [("Secret", "image_secrets", name) for name in on.image_secrets]
    references += [("ClusterTrainingRuntime", "runtime", on.runtime)]
    for kind, key, name in references:
        if name is not None:
            _check_exists(cluster, kind, key, name)


def _check_exists(cluster: Cluster, kind: str, key: str, name: str) -> None:
    try:
        if cluster.get(kind, name):
            return
        existing = [entry["metadata"]["name"] for entry in cluster.list(kind, limit=MAX_NAMES)]
    except Forbidden:
        return
    raise UserError(
        f"on.{key} names {kind} '{name}', which does not exist in {cluster.display_name}",
        remedy=f"There are: {', '.join(existing)}" if existing else f"Create it first, or leave on.{key} out",
    )


def _check_volcano_queue(cluster: Cluster, on: KubernetesOn) -> None:
    name = on.queue or DEFAULT_QUEUE
    try:
        queue = cluster.get("Queue", name)
        existing = [] if queue else [entry["metadata"]["name"] for entry in cluster.list("Queue", limit=MAX_NAMES)]
    except Forbidden:
        return
    if queue is None and on.queue is None:
        raise UserError(
            f"on.queue is not set, and {cluster.display_name} has no Volcano queue '{name}', which is the default",
            remedy=f"Name one: on.queue=…; there are: {', '.join(existing) or 'none'}",
        )
    if queue is None and on.queue_make is None:
        raise UserError(
            f"on.queue names Volcano queue '{name}', which does not exist in {cluster.display_name}",
            remedy=f"There are: {', '.join(existing) or 'none'}; or have it created: 'on.queue_make={{weight: 1}}'",
        )
    state = (queue or {}).get("status", {}).get("state", "Open")
    if state != "Open":
        raise UserError(
            f"Volcano queue '{name}' is {state.lower()} and accepts no new run",
            remedy=f"Open it: vcctl queue operate --action open --name {name}; or use another: on.queue",
        )


def _check_kueue_queue(cluster: Cluster, name: str) -> None:
    version = cluster.preferred(KUEUE)
    if version is None:
        raise UserError(
            f"on.queue is {name}, and {cluster.display_name} has no Kueue",
            remedy="Leave on.queue out, or use a Volcano queue: on.job=vcjob",
        )
    _check_exists(cluster, cluster.kind("LocalQueue", f"{KUEUE}/{version}").key, "queue", name)


def _room(fitting: list[tuple[Machine, int]], requested: Amounts) -> int:
    """How many pods fit on the nodes that are ready, if nothing else runs on them."""
    return sum(count * _pods_per_node(machine, requested) for machine, count in fitting if machine.ready)


def _check_workers(needs: Needs, allowed: list[tuple[Machine, int]], *, elastic: bool) -> list[str]:
    """Pods that request no CPU fit anywhere, but each worker still needs a core."""
    cores = ceil(max(machine.offers.get("cpu", 0) for machine, _ in allowed))  # 1.93 of 2 cores are left to pods
    if needs.device != "cpu" or needs.devices or needs.cpu or not cores or needs.workers <= cores:
        return []
    problem = f"each node runs {needs.workers} workers, and the largest node has {cores} core{'s' * (cores > 1)}"
    remedy = f"Set on.workers={cores} or less, or request cores with on.cpu"
    if elastic:
        return [f"{problem}: {remedy[:1].lower()}{remedy[1:]}"]
    raise UserError(problem, remedy=remedy)


def _requested(needs: Needs) -> Amounts:
    amounts: Amounts = {name: float(count) for name, count in needs.devices.items()}
    if needs.cpu:
        amounts["cpu"] = needs.cpu
    if needs.memory:
        amounts["memory"] = float(needs.memory)
    return amounts | {name: quantity(amount) for name, amount in needs.resources.items()}


def _missing(machine: Machine, requested: Amounts) -> list[str]:
    """The resources of which the node has less than one pod requests."""
    return [name for name, value in requested.items() if machine.offers.get(name, 0) < value]


def _pods_per_node(machine: Machine, requested: Amounts) -> int:
    return min((int(machine.offers[name] / value + 1e-9) for name, value in requested.items() if value), default=0)


def _selection(needs: Needs) -> str:
    """What the run asks of a node, to follow `no node of the cluster` in a message."""
    labels = [f"{key}={value}" for key, value in needs.selectors.items()]
    labels += [" or ".join(f"{key}={value}" for key, value in needs.spot)] if needs.spot else []
    if not labels:
        return f"accepts its pods: all have taints{' or are in on.avoid' if needs.avoid else ''}"
    beside = " and is not in on.avoid" if needs.avoid else ""
    return f"has the label{'s' * (len(labels) > 1)} {', '.join(labels)}{beside}"


def _selection_remedy(needs: Needs, inventory: Inventory) -> str:
    if not needs.selectors and not needs.spot:
        taints = [taint for machine, _ in inventory.kinds for taint in machine.taints]
        keys = sorted({str(taint["key"]) for taint in taints if is_lasting(taint)})
        ways = [f"Set on.tolerations to some of: {', '.join(keys)}"] if keys else []
        return "; or: ".join([*ways, "Name fewer nodes in on.avoid"] if needs.avoid else ways)
    types = {machine.labels.get(TYPE_LABEL) for machine, _ in inventory.kinds} - {None}
    existing = f" Instance types in the cluster: {', '.join(sorted(map(str, types)))}" if types else ""
    return (
        "Change on.instance, on.spot or on.selectors; see the labels with: kubectl get nodes --show-labels." + existing
    )


def _format(name: str, value: float) -> str:
    return FORMATS[name](value) if name in FORMATS else f"{value:g} {name}"


def _smaller_request(name: str) -> str:
    if name == HUGE_PAGES:
        return "EFA needs them: reserve huge pages on the nodes (vm.nr_hugepages), or do without EFA: on.efa=0"
    keys = {"cpu": "on.cpu", "memory": "on.memory"}
    key = keys.get(name, "on.gpus, on.efa or on.neuron")
    more = "" if name in keys else "; if the nodes do have them, their device plugin is missing: stoker check kube"
    return f"Ask for less with {key}{more}"
