"""`on`: where a run lives, and what it is given there."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue as JsonSchema
from pydantic_core import core_schema

from stoker.spec import contract
from stoker.spec.section import Place, PositiveCount, Section
from stoker.spec.units import MOST, Count, Number, Seconds, Text, number, size

LABEL = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
TOLERATION = r"^[A-Za-z0-9][A-Za-z0-9._/-]*(=[A-Za-z0-9._-]*)?(:(NoSchedule|PreferNoSchedule|NoExecute))?$"
ENDPOINT = r"^(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):[1-9][0-9]{0,4}$"
RANGE = re.compile(r"([1-9][0-9]{0,5})(?:\.\.([1-9][0-9]{0,5}))?")


class Nodes(str):
    """How many nodes: `2`, or from `least` to `most` of them: `1..8`."""

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        found = RANGE.fullmatch(text.strip())
        if not found:
            raise ValueError(f"'{text}' is no number of nodes; write one such as 2, or a range such as 1..8")
        least, most = int(found[1]), int(found[2] or found[1])
        if least > most:
            raise ValueError(f"{text} ends before it begins; write {most}..{least}")
        return super().__new__(cls, str(least) if least == most else f"{least}..{most}")

    @property
    def least(self) -> int:
        return int(self.partition("..")[0])

    @property
    def most(self) -> int:
        return int(self.rpartition("..")[2])

    @property
    def fixed(self) -> bool:
        return self.least == self.most

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        made = core_schema.no_info_after_validator_function(cls, core_schema.str_schema())
        return core_schema.no_info_before_validator_function(
            lambda v: str(number(v)) if isinstance(v, (int, float)) else v,
            made,
            serialization=core_schema.to_string_ser_schema(),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, _core: core_schema.CoreSchema, _handler: GetJsonSchemaHandler) -> JsonSchema:
        written = {"type": "string", "pattern": f"^{RANGE.pattern}$"}
        return {"anyOf": [{"type": "integer", "minimum": 1}, written]}


Bytes = Annotated[int, BeforeValidator(lambda v: size(v) if isinstance(v, str) else number(v)), Field(gt=0, le=MOST)]
DnsLabel = Annotated[Text, Field(pattern=LABEL)]
DnsName = Annotated[Text, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]


class Autoscale(Section):
    cpu: PositiveCount
    """Percent of the cores that the pods ask for: a pod is added while they use more on average, one is taken away when they would do with fewer."""  # noqa: E501


class On(Section):
    kind: Literal["local", "kubernetes"] = "local"
    """Where the run lives: this machine, or a Kubernetes cluster. All that stands below `max_restarts` is for Kubernetes alone."""  # noqa: E501
    workers: Annotated[Count, Field(gt=0, le=1024)] | Literal["auto"] = "auto"
    """Processes on each node, up to 1024; `auto` is one for each GPU (or Neuron core), or one on a machine without."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """What the workers compute on."""
    max_restarts: Annotated[Count, Field(ge=0)] = 3
    """Crashes in a row, with no new checkpoint between them, before the run is given up. When a script saves is its own affair: its count begins anew after ten minutes."""  # noqa: E501
    nodes: Nodes = Nodes("1")
    """Pods of the run: `2`, or `1..8`: as many as there is room for, and it goes on with fewer when some are lost."""
    job: Literal["job", "jobset", "pytorchjob", "trainjob", "vcjob", "auto"] = "job"
    """What carries the pods: a plain Kubernetes `job`, which needs no operator; a `jobset`; a `pytorchjob` or a `trainjob` of Kubeflow's training operator v1 or Trainer v2; a `vcjob` of Volcano, whose pods start together or not at all. `auto`: the first that the cluster has of vcjob, trainjob, jobset, pytorchjob, job."""  # noqa: E501
    queue: DnsName | None = None
    """The queue that the run waits in: Volcano's for a `vcjob` (left out: its `default`), Kueue's LocalQueue for all others."""  # noqa: E501
    queue_make: dict[str, Any] | None = None
    """Volcano's Queue is made with this spec when the cluster has none of that name, such as `{weight: 1, capability: {cpu: 8}}`. It stays when the run has ended."""  # noqa: E501
    runtime: DnsName | None = None
    """The ClusterTrainingRuntime under a `trainjob`, such as `torch-distributed`: the run's own things are laid over it as runtimePatches. It needs a fixed number of `nodes`. Left out: the run brings its own."""  # noqa: E501
    autoscale: Autoscale | None = None
    """Have Kubernetes choose how many of the `nodes` of a `pytorchjob` there are, by a HorizontalPodAutoscaler such as `{cpu: 80}`. Left out: as many as there is room for."""  # noqa: E501
    context: Text | None = None
    """The kubeconfig's context. Left out: its current one."""
    namespace: DnsLabel | None = None
    """Left out: the context's own."""
    image: Place | None = None
    """The container image: one with Stoker and your code in it; or, with `registry`, the one that these are laid over."""  # noqa: E501
    registry: Place | None = None
    """The repository that the run's own image is pushed to, such as `registry.example/team/runs`. Left out: `image` is used as it is."""  # noqa: E501
    volume: DnsName | None = None
    """The volume claim that holds runs, data and models; pods of several nodes need one that many may write."""
    instance: Place | None = None
    """The instance type of its nodes, such as `p5.48xlarge`: brings what that type offers and needs."""
    spot: bool = False
    """Spot nodes only."""
    cpu: Annotated[Number, Field(gt=0)] | None = None
    """Cores of each node's pod. Left out: what the instance type has, less what the system needs."""
    memory: Bytes | None = None
    """Memory of each node's pod, such as `16GiB`. Left out: as `cpu`."""
    gpus: Annotated[Count, Field(ge=0)] | None = None
    """GPUs of each node's pod. Left out: all that the instance type has."""
    efa: Annotated[Count, Field(ge=0)] | None = None
    """EFA network devices of each node's pod. Left out: all of an instance type for multi-node training (p4d and up, trn), when there are several nodes."""  # noqa: E501
    neuron: Annotated[Count, Field(ge=0)] | None = None
    """Neuron devices of each node's pod. Left out: all that the instance type has."""
    selectors: dict[str, Text] = {}
    """Labels that its nodes have, such as `{role: gpu}`."""
    tolerations: list[Annotated[Text, Field(pattern=TOLERATION)]] = []
    """Taints of nodes that it may use all the same, as kubectl writes them: `key`, `key=value`, `key=value:NoSchedule`."""  # noqa: E501
    avoid: list[DnsName] = []
    """Nodes of the cluster that its pods stay away from, by name: those in which `stoker net` found a fault."""
    shm: Bytes | None = None
    """Size of /dev/shm, which counts as memory of the pod. Left out: half of `memory`."""
    service_account: DnsName | None = None
    """The service account of the pods: what they may do in the cluster and the cloud. Left out: none, without a token."""  # noqa: E501
    priority: DnsName | None = None
    """The priority class of the pods."""
    grace: Annotated[Seconds, Field(ge=1)] = 120.0
    """Time that a pod has to save when it is told to leave. A spot node gives two minutes on AWS, 30 seconds on GCP."""
    image_secrets: list[DnsName] = []
    """Secrets of the namespace that open the image's registry."""
    rendezvous: Literal["own", "etcd"] = "own"
    """How a script's workers get their ranks: `own` is from Stoker's supervisors; with `etcd` they start torch's agents, which agree through an etcd server."""  # noqa: E501
    etcd: Annotated[Text, Field(pattern=ENDPOINT)] = "etcd-client:2379"
    """Where that server listens, `HOST:PORT`: by default where `stoker addon etcd` puts one. It must have the v2 API: etcd 3.5 or older."""  # noqa: E501
    network_policy: bool = False
    """Make a NetworkPolicy with the run: its pods accept connections from each other and from nobody else. The cluster's network must be one that enforces policies."""  # noqa: E501
    pod: dict[str, Any] = {}
    """Merged over the pod template (metadata and spec), lists of named things by name: for all that has no field here."""  # noqa: E501

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        if self.kind == "local":
            for name in KUBERNETES_ONLY:
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(
                        f"{name} is for Kubernetes and has no effect here; set on.kind to kubernetes, "
                        f"or take on.{name} out"
                    )
        if self.rendezvous == "own" and self.etcd != type(self).model_fields["etcd"].default:
            raise ValueError("etcd is asked for nothing; set on.rendezvous to etcd, or take on.etcd out")
        if self.gpus is not None and self.workers != "auto" and 0 < self.gpus < self.workers:
            raise ValueError(f"workers is {self.workers}, and gpus {self.gpus}; set on.workers to {self.gpus} or less")
        if self.runtime is not None and self.job not in ("trainjob", "auto"):
            raise ValueError(f"runtime is for a trainjob, and job is {self.job}; set on.job to trainjob")
        if self.runtime is not None and not self.nodes.fixed:  # when a Job is done cannot be laid over a runtime
            raise ValueError(
                f"nodes is {self.nodes}, and a run over a runtime of the cluster's is done when all its pods are; "
                f"set on.nodes to {self.nodes.most}, or take on.runtime out"
            )
        if self.queue_make is not None and (self.queue is None or self.job not in ("vcjob", "auto")):
            raise ValueError("queue_make makes Volcano's queue; set on.queue to its name and on.job to vcjob")
        if self.autoscale and (self.job != "pytorchjob" or self.nodes.fixed):
            raise ValueError("autoscale is for a pytorchjob of some nodes; set on.job to pytorchjob, on.nodes to 1..8")
        if self.autoscale and self.cpu is None and self.instance is None:
            raise ValueError("autoscale compares with the cores that a pod asks for; set on.cpu")
        spec = self.pod.get("spec")
        if self.network_policy and isinstance(spec, dict) and spec.get("hostNetwork"):
            raise ValueError(
                "network_policy does nothing for pods in the network of their node; take hostNetwork out of on.pod"
            )
        if unknown := set(self.pod) - {"metadata", "spec"}:
            raise ValueError(f"pod has {min(unknown)}; write pod: {{spec: …}} or pod: {{metadata: …}}")
        return self


KUBERNETES_ONLY = [*On.model_fields][[*On.model_fields].index("nodes") :]


def cluster_name(name: str) -> str:
    """The nearest to it that a run can be called in a cluster, with room for a suffix."""
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "run"
    begun = words if words[0].isalpha() else f"run-{words}"
    return begun[: contract.LONGEST_RUN - 5].strip("-")
