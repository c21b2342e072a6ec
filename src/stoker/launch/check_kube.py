"""What a cluster has for runs, what it lacks, and the command that mends each lack."""

import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import yaml

from stoker.kube import Cluster, Forbidden, Object, connect
from stoker.kube.kinds import KINDS as API_KINDS
from stoker.kube.kinds import Kind
from stoker.kube.rights import grant
from stoker.launch.check import Finding
from stoker.launch.check_dns import check_dns
from stoker.launch.inventory import Inventory, grouped
from stoker.launch.jobs import KINDS, job_kind
from stoker.launch.kubernetes import is_elastic
from stoker.launch.needs import TYPE_LABEL
from stoker.spec.errors import UserError
from stoker.spec.instances import instance, table

GIB = 2**30
WRITE = ("create", "patch", "delete")
USED = {  # resource -> verbs: all that Stoker does in a namespace
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
OF_KINDS: dict[str, dict[str, tuple[str, ...]]] = {  # the same, where a kind of job is used that needs an operator
    "pytorchjob": {"PyTorchJob": ("get", "list", *WRITE)},
    "jobset": {"JobSet": ("get", "list", *WRITE)},
    "trainjob": {"TrainJob": ("get", "list", *WRITE), "TrainingRuntime": WRITE, "JobSet": ("get", "delete")},
    "vcjob": {"Job.batch.volcano.sh": ("get", "list", *WRITE)},
}
OF_POLICY = {"NetworkPolicy": WRITE}
CONTROLLERS = {  # labels of their Deployments, as each comes from its own manifests or its own chart
    "pytorchjob": [{"control-plane": "kubeflow-training-operator"}],
    "jobset": [{"app.kubernetes.io/name": "jobset"}],
    "trainjob": [{"app.kubernetes.io/name": "trainer"}],
    "vcjob": [{"app": "volcano-admission"}, {"app": "volcano-controller"}, {"app": "volcano-scheduler"}],
}
SHARES = re.compile(r"nfs|efs|fsx|filestore|cephfs|file\.csi\.azure|glusterfs|lustre|beegfs|weka|gpfs|juicefs")
UNKNOWN_CLASS = "CLASS"
INIT_FLAG = "--pytorch-init-container-image"


def check(context: str | None, namespace: str | None) -> list[Finding]:
    try:
        cluster = connect(context, namespace)
    except UserError as e:
        return [Finding(name="cluster", ok=False, needed=True, found=e.problem, remedy=e.remedy)]
    parts: list[Callable[[Cluster], Iterator[Finding]]] = [
        _cluster,
        _namespace,
        _rights,
        _nodes,
        _volumes,
        _operators,
        check_dns,
    ]
    return [finding for part in parts for finding in part(cluster)]


def _cluster(cluster: Cluster) -> Iterator[Finding]:
    found = f"{cluster.who}, {cluster.server}, Kubernetes {cluster.version}"
    yield Finding(name="cluster", ok=True, needed=True, found=found)


def _namespace(cluster: Cluster) -> Iterator[Finding]:
    name = cluster.namespace
    try:
        there = cluster.get("Namespace", name) is not None
    except Forbidden:
        yield Finding(name="namespace", ok=True, needed=True, found=f"{name} (you may not see whether it is there)")
        return
    remedy = "" if there else f"Run: {cluster.kubectl_anywhere} create namespace {name}"
    found = name if there else f"there is no {name}"
    yield Finding(name="namespace", ok=there, needed=True, found=found, remedy=remedy)


def _rights(cluster: Cluster) -> Iterator[Finding]:
    yield _allowed(cluster, "rights", USED)
    for name, used in OF_KINDS.items():
        if all(cluster.serves(one) for one in job_kind(name).NEEDS):
            yield _allowed(
                cluster, f"{name} rights", used, of=f"{name}s", asks=f"on.job={name}", otherwise="on.job=job"
            )
    asks, otherwise = "on.network_policy", "a run without on.network_policy"
    yield _allowed(cluster, "policy rights", OF_POLICY, of="network-policies", asks=asks, otherwise=otherwise)


def _allowed(
    cluster: Cluster,
    name: str,
    used: Mapping[str, tuple[str, ...]],
    *,
    of: str = "",
    asks: str = "",
    otherwise: str = "",
) -> Finding:
    """`asks`: what in a run file needs them, and `otherwise` what does without; left out: every run needs them."""
    rights = [(verb, _resource(one)) for one, verbs in used.items() for verb in verbs]
    needed = not asks
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda one: _may(cluster, *one), rights)
        lacking = [right for right, allowed in zip(rights, answers, strict=True) if not allowed]
    if not lacking:
        what = "that are needed" if needed else f"that {asks} needs"
        return Finding(name=name, ok=True, needed=needed, found=f"all {len(rights)} {what}")
    words = ", ".join(f"{verb} {kind.plural}" for verb, kind in lacking)
    role = f"stoker-{of}" if of else "stoker"
    remedy = grant(rights, namespace=cluster.namespace, name=role, user=cluster.user())
    found = f"you may not {words}" + ("" if needed else f"; {otherwise} needs none of it")
    return Finding(name=name, ok=False, needed=needed, found=found, remedy=remedy)


def _may(cluster: Cluster, verb: str, kind: Kind) -> bool:
    return cluster.allowed(verb, kind.key, subresource=kind.plural.partition("/")[2])


def _nodes(cluster: Cluster) -> Iterator[Finding]:
    try:
        inventory = grouped(cluster.list("Node"), elastic=is_elastic(cluster))
    except Forbidden:
        yield Finding(name="nodes", ok=True, needed=False, found="you may not see them; the scheduler tells what fits")
        return
    ready = [(machine, count) for machine, count in inventory.kinds if machine.ready]
    total = sum(count for _, count in inventory.kinds)
    there = sum(count for _, count in ready)
    cores = sum(machine.offers.get("cpu", 0) * count for machine, count in ready)
    memory = sum(machine.offers.get("memory", 0) * count for machine, count in ready)
    cordoned = [(machine, count) for machine, count in inventory.kinds if machine.cordoned]
    closed = f" ({sum(count for _, count in cordoned)} cordoned)" if cordoned else ""
    found = f"{there} of {total} ready{closed}, {cores:g} cores, {memory / GIB:,.0f} GiB"
    for name in table()["devices"].values():
        if devices := sum(machine.offers.get(name, 0) * count for machine, count in ready):
            found += f", {devices:g} {name}"
    found += ", more are added on demand" if inventory.elastic else ""
    remedy = "" if there else f"See: {cluster.kubectl_anywhere} describe nodes"
    if cordoned and not there:
        remedy = f"Open it to new pods: {cluster.kubectl_anywhere} uncordon {cordoned[0][0].name}"
    yield Finding(name="nodes", ok=bool(there) or inventory.elastic, needed=True, found=found, remedy=remedy)
    yield from _devices(inventory)


def _devices(inventory: Inventory) -> Iterator[Finding]:
    """Nodes whose type has devices that nobody offers."""
    for part, resource in table()["devices"].items():
        missing = [
            machine.name
            for machine, _ in inventory.kinds
            if (known := instance(machine.labels.get(TYPE_LABEL, "")))
            and getattr(known, part)
            and (part != "efa" or known.rdma)
            and not machine.offers.get(resource)
        ]
        if missing:
            found = f"{', '.join(missing[:3])} should offer {resource} and does not: its device plugin is missing"
            yield Finding(name=part, ok=False, needed=False, found=found, remedy=PLUGINS[part])


def _volumes(cluster: Cluster) -> Iterator[Finding]:
    try:
        claims = list(cluster.list("PersistentVolumeClaim"))
    except Forbidden:
        return  # told with the rights
    shared = [one for one in claims if "ReadWriteMany" in one["spec"].get("accessModes", [])]
    words = [f"{one['metadata']['name']} ({one['status'].get('phase', '?')})" for one in shared]
    if shared:
        yield Finding(name="volumes", ok=True, needed=True, found=f"for several nodes: {', '.join(words)}")
        return
    single = [one["metadata"]["name"] for one in claims]
    found = f"none that several nodes can share; for one node: {', '.join(single)}" if single else "no claim"
    yield Finding(name="volumes", ok=False, needed=not single, found=found, remedy=_claim(cluster))


def _claim(cluster: Cluster) -> str:
    """The command that makes a claim which several nodes can share, as far as the cluster has a class for it."""
    try:
        classes = list(cluster.list("StorageClass"))
    except Forbidden:
        classes = None
    if classes == []:
        return (
            "The cluster has no storage class, so nothing would give a claim its volume: ask your cluster admin for a "
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
    return f"Make one{note}: {cluster.kubectl} apply -f - <<'END'\n{text}END"


def _class(classes: list[Object]) -> tuple[str, str]:
    """The one that most likely gives volumes which several nodes can share, and a word on the choice."""
    if not classes:
        return UNKNOWN_CLASS, f"with the name of a class that gives shared volumes for {UNKNOWN_CLASS}"
    names = [one["metadata"]["name"] for one in classes]
    known = [one["metadata"]["name"] for one in classes if SHARES.search(one.get("provisioner", ""))]
    usual = [name for name, one in zip(names, classes, strict=True) if _is_default(one)]
    chosen = (*known, *usual, *names)[0]
    doubt = "" if known else "if that class gives ReadWriteMany; "
    others = [name for name in names if name != chosen]
    return chosen, (doubt + (f"there are also: {', '.join(others)}" if others else "")).removesuffix("; ")


def _is_default(storage: Object) -> bool:
    notes = storage["metadata"].get("annotations") or {}
    return notes.get("storageclass.kubernetes.io/is-default-class") == "true"


def _operators(cluster: Cluster) -> Iterator[Finding]:
    for name in KINDS:
        if job_kind(name).NEEDS:
            yield from _operator(cluster, name)


def _operator(cluster: Cluster, name: str) -> Iterator[Finding]:
    kind = job_kind(name)
    lacking = [one for one in kind.NEEDS if not cluster.serves(one)]
    if lacking:
        found = f"{kind.OPERATOR} is not installed; on.job=job needs none"
        yield Finding(name=name, ok=False, needed=False, found=found, remedy=f"Run: {kind.INSTALL}")
        return
    try:
        parts = [list(cluster.list("Deployment", labels=one, everywhere=True)) for one in CONTROLLERS[name]]
    except Forbidden:
        yield Finding(name=name, ok=True, needed=False, found="its CRD is there; you may not see its controller")
        return
    for labels, some in zip(CONTROLLERS[name], parts, strict=True):
        if trouble := _trouble(cluster, name, labels, some):
            yield trouble
            return
    deployments = [one for some in parts for one in some]
    found = f"{kind.OPERATOR} in namespace {deployments[0]['metadata']['namespace']}"
    yield Finding(name=name, ok=True, needed=False, found=found)
    if name == "pytorchjob" and not any(INIT_FLAG in word for word in _words(deployments[0])):
        found = "workers of a fixed number of nodes first pull alpine:3.10, which the operator names"
        remedy = f"Give the operator another: {INIT_FLAG}=IMAGE; or write nodes as a range, or take on.job=job"
        yield Finding(name="init image", ok=False, needed=False, found=found, remedy=remedy)


def _trouble(cluster: Cluster, name: str, labels: Mapping[str, str], there: list[Object]) -> Finding | None:
    """Of one part of an operator: it is missing, scaled to none, or not ready."""
    kind, [part] = job_kind(name), labels.values()
    found, remedy = f"its CRD is there, its controller {part} is not", f"Run: {kind.INSTALL}"
    for one in there:
        if one.get("status", {}).get("readyReplicas"):
            return None
        of, kubectl = one["metadata"]["name"], f"{cluster.kubectl_anywhere} -n {one['metadata']['namespace']}"
        found = f"its CRD is there, its controller {of} is not ready"
        remedy = f"Run: {kubectl} rollout status deployment/{of}"
        if one["spec"].get("replicas") == 0:
            found = f"its CRD is there, its controller {of} is scaled to none"
            remedy = f"Run: {kubectl} scale deployment/{of} --replicas=1"
    return Finding(name=name, ok=False, needed=False, found=found, remedy=remedy)


def _words(deployment: Object) -> Iterator[str]:
    for container in deployment["spec"]["template"]["spec"]["containers"]:
        yield from (*container.get("command", []), *container.get("args", []))


def _resource(name: str) -> Kind:
    kind, slash, part = name.partition("/")
    known = API_KINDS[kind]
    return Kind(known.name, known.version, f"{known.plural}/{part}") if slash else known
