"""`stoker check kube`: what runs need in a cluster, what is missing, and the command that fixes it."""

import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import yaml

from stoker.backends.backend import CheckResult
from stoker.backends.kubernetes.dns import check_dns
from stoker.backends.kubernetes.inventory import Inventory, grouped
from stoker.backends.kubernetes.job_control import is_elastic
from stoker.backends.kubernetes.jobs import KINDS, job_kind
from stoker.backends.kubernetes.needs import TYPE_LABEL
from stoker.kube import Cluster, ClusterError, Forbidden, Object, connect
from stoker.kube.kinds import KINDS as API_KINDS
from stoker.kube.kinds import Kind
from stoker.kube.rights import grant
from stoker.spec.hardware import instance_table, instance_type

GIB = 2**30
WRITE = ("create", "patch", "delete")
RIGHTS = {  # resource -> verbs that Stoker uses in a namespace
    "Job": ("get", "list", *WRITE),
    "Pod": ("get", "list", "watch", *WRITE, "deletecollection"),
    "Pod/log": ("get",),
    "Pod/exec": ("create", "get"),
    "Service": WRITE,
    "Secret": WRITE,
    "PersistentVolumeClaim": ("get", "list"),
    "Event": ("list",),
}
PLUGINS = {
    "gpus": "Run: helm upgrade --install nvdp nvidia-device-plugin --repo https://nvidia.github.io/k8s-device-plugin "
    "-n nvidia-device-plugin --create-namespace",
    "efa": "Run: helm upgrade --install efa aws-efa-k8s-device-plugin --repo https://aws.github.io/eks-charts "
    "-n kube-system",
    "neuron": "Install the Neuron Helm chart, as the AWS Neuron documentation says under Kubernetes",
}
JOB_RIGHTS: dict[str, dict[str, tuple[str, ...]]] = {  # the same, for kinds of jobs that need an operator
    "pytorchjob": {"PyTorchJob": ("get", "list", *WRITE)},
    "jobset": {"JobSet": ("get", "list", *WRITE)},
    "trainjob": {"TrainJob": ("get", "list", *WRITE), "TrainingRuntime": WRITE, "JobSet": ("get", "delete")},
    "vcjob": {"Job.batch.volcano.sh": ("get", "list", *WRITE)},
}
POLICY_RIGHTS = {"NetworkPolicy": WRITE}
CONTROLLERS = {  # labels of their Deployments, in their official manifests and charts
    "pytorchjob": [{"control-plane": "kubeflow-training-operator"}],
    "jobset": [{"app.kubernetes.io/name": "jobset"}],
    "trainjob": [{"app.kubernetes.io/name": "trainer"}],
    "vcjob": [{"app": "volcano-admission"}, {"app": "volcano-controller"}, {"app": "volcano-scheduler"}],
}
SHARED_STORAGE = re.compile(r"nfs|efs|fsx|filestore|cephfs|file\.csi\.azure|glusterfs|lustre|beegfs|weka|gpfs|juicefs")
UNKNOWN_CLASS = "CLASS"
INIT_FLAG = "--pytorch-init-container-image"


def check(context: str | None, namespace: str | None) -> list[CheckResult]:
    try:
        cluster = connect(context, namespace)
    except ClusterError as e:
        return [CheckResult(name="cluster", ok=False, needed=True, detail=e.problem, remedy=e.remedy)]
    parts: list[Callable[[Cluster], Iterator[CheckResult]]] = [
        _cluster,
        _namespace,
        _rights,
        _nodes,
        _volumes,
        _operators,
        check_dns,
    ]
    return [result for part in parts for result in part(cluster)]


def _cluster(cluster: Cluster) -> Iterator[CheckResult]:
    detail = f"{cluster.display_name}, {cluster.server}, Kubernetes {cluster.version}"
    yield CheckResult(name="cluster", ok=True, needed=True, detail=detail)


def _namespace(cluster: Cluster) -> Iterator[CheckResult]:
    name = cluster.namespace
    try:
        exists = cluster.get("Namespace", name) is not None
    except Forbidden:
        yield CheckResult(name="namespace", ok=True, needed=True, detail=f"{name} (you may not see whether it exists)")
        return
    remedy = "" if exists else f"Run: {cluster.kubectl_anywhere} create namespace {name}"
    detail = name if exists else f"{name} does not exist"
    yield CheckResult(name="namespace", ok=exists, needed=True, detail=detail, remedy=remedy)


def _rights(cluster: Cluster) -> Iterator[CheckResult]:
    yield _allowed(cluster, "rights", RIGHTS)
    for name, rights in JOB_RIGHTS.items():
        if all(cluster.serves(kind) for kind in job_kind(name).NEEDS):
            yield _allowed(
                cluster, f"{name} rights", rights, role=f"{name}s", setting=f"on.job={name}", without="on.job=job"
            )
    setting, without = "on.network_policy", "a run without on.network_policy"
    yield _allowed(cluster, "policy rights", POLICY_RIGHTS, role="network-policies", setting=setting, without=without)


def _allowed(
    cluster: Cluster,
    name: str,
    verbs_of: Mapping[str, tuple[str, ...]],
    *,
    role: str = "",
    setting: str = "",
    without: str = "",
) -> CheckResult:
    """`setting`: what in a run file needs these rights; empty: every run does. `without`: what does not need them."""
    rights = [(verb, _resource(resource)) for resource, verbs in verbs_of.items() for verb in verbs]
    needed = not setting
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda right: _may(cluster, *right), rights)
        missing = [right for right, allowed in zip(rights, answers, strict=True) if not allowed]
    if not missing:
        purpose = "that are needed" if needed else f"that {setting} needs"
        return CheckResult(name=name, ok=True, needed=needed, detail=f"all {len(rights)} {purpose}")
    actions = ", ".join(f"{verb} {kind.plural}" for verb, kind in missing)
    role_name = f"stoker-{role}" if role else "stoker"
    remedy = grant(rights, namespace=cluster.namespace, name=role_name, user=cluster.user())
    detail = f"you may not {actions}" + ("" if needed else f"; {without} needs none of it")
    return CheckResult(name=name, ok=False, needed=needed, detail=detail, remedy=remedy)


def _may(cluster: Cluster, verb: str, kind: Kind) -> bool:
    return cluster.allowed(verb, kind.key, subresource=kind.plural.partition("/")[2])


def _nodes(cluster: Cluster) -> Iterator[CheckResult]:
    try:
        inventory = grouped(cluster.list("Node"), elastic=is_elastic(cluster))
    except Forbidden:
        yield CheckResult(
            name="nodes", ok=True, needed=False, detail="you may not list them; the scheduler decides what fits"
        )
        return
    ready = [(machine, count) for machine, count in inventory.kinds if machine.ready]
    total = sum(count for _, count in inventory.kinds)
    ready_count = sum(count for _, count in ready)
    cores = sum(machine.offers.get("cpu", 0) * count for machine, count in ready)
    memory = sum(machine.offers.get("memory", 0) * count for machine, count in ready)
    cordoned = [(machine, count) for machine, count in inventory.kinds if machine.cordoned]
    closed = f" ({sum(count for _, count in cordoned)} cordoned)" if cordoned else ""
    detail = f"{ready_count} of {total} ready{closed}, {cores:g} cores, {memory / GIB:,.0f} GiB"
    for name in instance_table()["devices"].values():
        if devices := sum(machine.offers.get(name, 0) * count for machine, count in ready):
            detail += f", {devices:g} {name}"
    detail += ", an autoscaler adds more" if inventory.elastic else ""
    remedy = "" if ready_count else f"See: {cluster.kubectl_anywhere} describe nodes"
    if cordoned and not ready_count:
        remedy = f"Let it accept pods again: {cluster.kubectl_anywhere} uncordon {cordoned[0][0].name}"
    yield CheckResult(
        name="nodes", ok=bool(ready_count) or inventory.elastic, needed=True, detail=detail, remedy=remedy
    )
    yield from _devices(inventory)


def _devices(inventory: Inventory) -> Iterator[CheckResult]:
    """Nodes whose instance type has devices that no device plugin offers."""
    for part, resource in instance_table()["devices"].items():
        missing = [
            machine.name
            for machine, _ in inventory.kinds
            if (instance := instance_type(machine.labels.get(TYPE_LABEL, "")))
            and getattr(instance, part)
            and (part != "efa" or instance.rdma)
            and not machine.offers.get(resource)
        ]
        if missing:
            detail = f"{', '.join(missing[:3])} should offer {resource} and does not: its device plugin is missing"
            yield CheckResult(name=part, ok=False, needed=False, detail=detail, remedy=PLUGINS[part])


def _volumes(cluster: Cluster) -> Iterator[CheckResult]:
    try:
        claims = list(cluster.list("PersistentVolumeClaim"))
    except Forbidden:
        return  # reported with the rights
    shared = [claim for claim in claims if "ReadWriteMany" in claim["spec"].get("accessModes", [])]
    names = [f"{claim['metadata']['name']} ({claim['status'].get('phase', '?')})" for claim in shared]
    if shared:
        yield CheckResult(name="volumes", ok=True, needed=True, detail=f"for several nodes: {', '.join(names)}")
        return
    single = [claim["metadata"]["name"] for claim in claims]
    detail = f"none that several nodes can share; for one node: {', '.join(single)}" if single else "no claim"
    yield CheckResult(name="volumes", ok=False, needed=not single, detail=detail, remedy=_claim(cluster))


def _claim(cluster: Cluster) -> str:
    """The command that creates a claim which several nodes can share, if the cluster has a storage class for it."""
    try:
        classes = list(cluster.list("StorageClass"))
    except Forbidden:
        classes = None
    if classes == []:
        return (
            "The cluster has no storage class, so a claim would get no volume: ask your cluster admin for a "
            "class, or a PersistentVolume, with ReadWriteMany access (NFS, EFS, FSx, Filestore, CephFS)"
        )
    chosen, others = _class(classes or [])
    note = f" ({others})" if others else ""
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "training"},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": chosen,
            "resources": {"requests": {"storage": "100Gi"}},
        },
    }
    text = yaml.safe_dump(claim, sort_keys=False)
    return f"Create one{note}: {cluster.kubectl} apply -f - <<'END'\n{text}END"


def _class(classes: list[Object]) -> tuple[str, str]:
    """The class most likely to provide volumes that several nodes can share, and a note on the choice."""
    if not classes:
        return UNKNOWN_CLASS, f"replace {UNKNOWN_CLASS} with a storage class for shared volumes"
    names = [storage["metadata"]["name"] for storage in classes]
    shared = [storage for storage in classes if SHARED_STORAGE.search(storage.get("provisioner", ""))]
    default = [storage for storage in classes if is_default_class(storage)]
    chosen = (*shared, *default, *classes)[0]["metadata"]["name"]
    doubt = "" if shared else "if that class supports ReadWriteMany; "
    others = [name for name in names if name != chosen]
    return chosen, (doubt + (f"there are also: {', '.join(others)}" if others else "")).removesuffix("; ")


def is_default_class(storage: Object) -> bool:
    annotations = storage["metadata"].get("annotations") or {}
    return bool(annotations.get("storageclass.kubernetes.io/is-default-class") == "true")


def _operators(cluster: Cluster) -> Iterator[CheckResult]:
    for name in KINDS:
        if job_kind(name).NEEDS:
            yield from _operator(cluster, name)


def _operator(cluster: Cluster, name: str) -> Iterator[CheckResult]:
    kind = job_kind(name)
    if not all(cluster.serves(needed) for needed in kind.NEEDS):
        detail = f"{kind.OPERATOR} is not installed; on.job=job needs none"
        yield CheckResult(name=name, ok=False, needed=False, detail=detail, remedy=f"Run: {kind.INSTALL}")
        return
    try:
        parts = [list(cluster.list("Deployment", labels=labels, everywhere=True)) for labels in CONTROLLERS[name]]
    except Forbidden:
        yield CheckResult(
            name=name, ok=True, needed=False, detail="its CRD is installed; you may not list its controller"
        )
        return
    for labels, part in zip(CONTROLLERS[name], parts, strict=True):
        if problem := _controller_problem(cluster, name, labels, part):
            yield problem
            return
    deployments = [deployment for part in parts for deployment in part]
    detail = f"{kind.OPERATOR} in namespace {deployments[0]['metadata']['namespace']}"
    yield CheckResult(name=name, ok=True, needed=False, detail=detail)
    if name == "pytorchjob" and not any(INIT_FLAG in argument for argument in _arguments(deployments[0])):
        detail = "with a fixed number of nodes, workers first pull alpine:3.10, the operator's default"
        remedy = f"Set another in the operator: {INIT_FLAG}=IMAGE; or use a range of on.nodes, or on.job=job"
        yield CheckResult(name="init image", ok=False, needed=False, detail=detail, remedy=remedy)


def _controller_problem(
    cluster: Cluster, name: str, labels: Mapping[str, str], deployments: list[Object]
) -> CheckResult | None:
    """One part of an operator is missing, scaled to zero, or not ready."""
    kind, [part] = job_kind(name), labels.values()
    detail, remedy = f"its CRD is installed, its controller {part} is not", f"Run: {kind.INSTALL}"
    for deployment in deployments:
        if deployment.get("status", {}).get("readyReplicas"):
            return None
        metadata = deployment["metadata"]
        controller, kubectl = metadata["name"], f"{cluster.kubectl_anywhere} -n {metadata['namespace']}"
        detail = f"its CRD is installed, its controller {controller} is not ready"
        remedy = f"Run: {kubectl} rollout status deployment/{controller}"
        if deployment["spec"].get("replicas") == 0:
            detail = f"its CRD is installed, its controller {controller} is scaled to zero"
            remedy = f"Run: {kubectl} scale deployment/{controller} --replicas=1"
    return CheckResult(name=name, ok=False, needed=False, detail=detail, remedy=remedy)


def _arguments(deployment: Object) -> Iterator[str]:
    for container in deployment["spec"]["template"]["spec"]["containers"]:
        yield from (*container.get("command", []), *container.get("args", []))


def _resource(name: str) -> Kind:
    kind, slash, part = name.partition("/")
    known = API_KINDS[kind]
    return Kind(known.name, known.version, f"{known.plural}/{part}") if slash else known
