"""`on`: where a run executes, and the resources it has there. One section for each kind of place."""

import json
import re
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import BeforeValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue as JsonSchema
from pydantic_core import core_schema

from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.section import Place, PositiveCount, Section
from stoker.spec.units import MAX_COUNT, Count, Number, Seconds, Text, number, size

LABEL = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
TOLERATION = r"^[A-Za-z0-9][A-Za-z0-9._/-]*(=[A-Za-z0-9._-]*)?(:(NoSchedule|PreferNoSchedule|NoExecute))?$"
ENDPOINT = r"^(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):[1-9][0-9]{0,4}$"
RANGE = re.compile(r"([1-9][0-9]{0,5})(?:\.\.([1-9][0-9]{0,5}))?")


class Nodes(str):
    """How many nodes: `2`, or from `least` to `most` of them: `1..8`."""

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        match = RANGE.fullmatch(text.strip())
        if not match:
            raise ValueError(f"'{text}' is not a number of nodes; write a number such as 2, or a range such as 1..8")
        least, most = int(match[1]), int(match[2] or match[1])
        if least > most:
            raise ValueError(f"{text} is not a range; write {most}..{least}")
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
        parsed = core_schema.no_info_after_validator_function(cls, core_schema.str_schema())
        return core_schema.no_info_before_validator_function(
            lambda v: str(number(v)) if isinstance(v, (int, float)) else v,
            parsed,
            serialization=core_schema.to_string_ser_schema(),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, _core: core_schema.CoreSchema, _handler: GetJsonSchemaHandler) -> JsonSchema:
        written = {"type": "string", "pattern": f"^{RANGE.pattern}$"}
        return {"anyOf": [{"type": "integer", "minimum": 1}, written]}


Bytes = Annotated[
    int, BeforeValidator(lambda v: size(v) if isinstance(v, str) else number(v)), Field(gt=0, le=MAX_COUNT)
]
DnsLabel = Annotated[Text, Field(pattern=LABEL)]
DnsName = Annotated[Text, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]


class On(Section):
    """What every place has. A place adds its own section below, and a backend."""

    kind: str = "local"
    """Where the run executes: `local` is this machine, `kubernetes` a cluster."""
    workers: Annotated[Count, Field(gt=0, le=1024)] | Literal["auto"] = "auto"
    """Processes on each node, up to 1024; `auto` is one for each GPU (or Neuron core), or one on a machine without."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the workers."""
    max_restarts: Annotated[Count, Field(ge=0)] = 3
    """Crashes in a row, with no new checkpoint between them, before the run fails. For a script, whose saves are not known, the count starts again after ten minutes without a crash."""  # noqa: E501

    @property
    def is_here(self) -> bool:
        """The workers run on this machine, and use its files."""
        return False

    @property
    def copies_code(self) -> bool:
        """Whether scripts and modules on this machine are available to the workers."""
        return self.is_here

    @property
    def node_range(self) -> Nodes:
        return Nodes("1")

    @property
    def is_scalable(self) -> bool:
        """The section has `nodes`, which may change while the run trains."""
        return "nodes" in type(self).model_fields

    @property
    def etcd_endpoint(self) -> str | None:
        """Where the agents of a script's workers agree on their ranks; None: the supervisors give them."""
        return None

    def run_name(self, name: str) -> str:
        """The nearest name that a run can have there, with room for a suffix."""
        return name[: contract.MAX_NAME - contract.SUFFIX_LENGTH]

    def named_code(self) -> list[str]:
        """`key=value` for all in this section that runs code, or chooses what does."""
        return []


class LocalOn(On):
    kind: Literal["local"] = "local"

    @property
    def is_here(self) -> bool:
        return True


class Autoscale(Section):
    cpu: PositiveCount
    """Target CPU use in percent of the requested cores: pods are added above it, and removed below it."""


class KubernetesOn(On):
    kind: Literal["kubernetes"] = "kubernetes"
    nodes: Nodes = Nodes("1")
    """Pods of the run: `2`, or a range such as `1..8`: as many as fit; the run continues with fewer when some are lost."""  # noqa: E501
    job: Literal["job", "jobset", "pytorchjob", "trainjob", "vcjob", "auto"] = "job"
    """The Kubernetes object that runs the pods: a plain `job`, which needs no operator; a `jobset`; a `pytorchjob` or `trainjob` of Kubeflow (training operator v1, Trainer v2); a `vcjob` of Volcano, whose pods start all together or not at all. `auto`: the first that the cluster has of vcjob, trainjob, jobset, pytorchjob, job."""  # noqa: E501
    queue: DnsName | None = None
    """The queue of the run: a Volcano queue for a `vcjob` (default: `default`), a Kueue LocalQueue for all others."""
    queue_make: dict[str, Any] | None = None
    """Create the Volcano queue with this spec if it does not exist, such as `{weight: 1, capability: {cpu: 8}}`. It remains after the run."""  # noqa: E501
    runtime: DnsName | None = None
    """The ClusterTrainingRuntime of a `trainjob`, such as `torch-distributed`; the run's settings are applied to it as runtimePatches. Needs a fixed number of `nodes`. Default: the run creates its own."""  # noqa: E501
    autoscale: Autoscale | None = None
    """Let a HorizontalPodAutoscaler choose the number of nodes of a `pytorchjob`, within the range of `nodes`, such as `{cpu: 80}`. Default: as many as fit."""  # noqa: E501
    context: Text | None = None
    """Context of the kubeconfig. Default: the current one."""
    namespace: DnsLabel | None = None
    """Default: the context's namespace."""
    image: Place | None = None
    """The container image: one that contains Stoker and your code; or, with `registry`, the base image that they are added to."""  # noqa: E501
    registry: Place | None = None
    """The repository that the run's image is pushed to, such as `registry.example/team/runs`. Default: none, and `image` is used unchanged."""  # noqa: E501
    volume: DnsName | None = None
    """The PersistentVolumeClaim for runs, data and models. Several nodes need one with access mode ReadWriteMany."""
    instance: Place | None = None
    """The instance type of the nodes, such as `p5.48xlarge`: sets cores, memory, GPUs and network devices to what it has."""  # noqa: E501
    spot: bool = False
    """Use spot nodes only."""
    cpu: Annotated[Number, Field(gt=0)] | None = None
    """Cores of each pod. Default: those of the instance type, minus what the system needs."""
    memory: Bytes | None = None
    """Memory of each pod, such as `16GiB`. Default: as for `cpu`."""
    gpus: Annotated[Count, Field(ge=0)] | None = None
    """GPUs of each pod. Default: all of the instance type."""
    efa: Annotated[Count, Field(ge=0)] | None = None
    """EFA network devices of each pod. Default: with several nodes, all that an instance type for multi-node training has (p4d and later, trn)."""  # noqa: E501
    neuron: Annotated[Count, Field(ge=0)] | None = None
    """Neuron devices of each pod. Default: all of the instance type."""
    selectors: dict[str, Text] = {}
    """Labels that the nodes must have, such as `{role: gpu}`."""
    tolerations: list[Annotated[Text, Field(pattern=TOLERATION)]] = []
    """Taints of nodes to tolerate, written as in kubectl: `key`, `key=value`, `key=value:NoSchedule`."""
    avoid: list[DnsName] = []
    """Names of cluster nodes that the pods must not run on, such as those in which `stoker net` found a fault."""
    shm: Bytes | None = None
    """Size of /dev/shm, which counts as memory of the pod. Default: half of `memory`."""
    service_account: DnsName | None = None
    """The service account of the pods. Default: none, and no token."""
    priority: DnsName | None = None
    """The priority class of the pods."""
    grace: Annotated[Seconds, Field(ge=1)] = 120.0
    """Time that a pod has to save after it is asked to stop. Spot nodes give two minutes on AWS, 30 seconds on GCP."""
    image_secrets: list[DnsName] = []
    """Image pull secrets of the namespace."""
    rendezvous: Literal["own", "etcd"] = "own"
    """How the workers of a script get their ranks: `own` is from Stoker's supervisors; `etcd` starts torch's elastic agents, which agree through an etcd server."""  # noqa: E501
    etcd: Annotated[Text, Field(pattern=ENDPOINT)] = "etcd-client:2379"
    """Address of that server, `HOST:PORT`; the default is where `stoker addon etcd` installs one. It needs the v2 API: etcd 3.5 or older."""  # noqa: E501
    network_policy: bool = False
    """Create a NetworkPolicy: the pods of the run accept connections only from each other. The cluster's network plugin must enforce policies."""  # noqa: E501
    pod: dict[str, Any] = {}
    """Merged into the pod template (metadata and spec), lists of named items by name: for everything that has no field here."""  # noqa: E501

    @property
    def copies_code(self) -> bool:
        return self.registry is not None

    @property
    def node_range(self) -> Nodes:
        return self.nodes

    @property
    def etcd_endpoint(self) -> str | None:
        return self.etcd if self.rendezvous == "etcd" else None

    def run_name(self, name: str) -> str:
        return cluster_name(name)

    def named_code(self) -> list[str]:
        named = [f"on.image={self.image}"] if self.image else []
        named += [f"on.registry={self.registry}"] if self.registry else []
        return named + ([f"on.pod={json.dumps(self.pod, sort_keys=True, default=str)}"] if self.pod else [])

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if self.rendezvous == "own" and self.etcd != type(self).model_fields["etcd"].default:
            raise ValueError("etcd is not used; set on.rendezvous to etcd, or remove on.etcd")
        if self.gpus is not None and self.workers != "auto" and 0 < self.gpus < self.workers:
            raise ValueError(f"workers is {self.workers}, and gpus {self.gpus}; set on.workers to {self.gpus} or less")
        if self.runtime is not None and self.job not in ("trainjob", "auto"):
            raise ValueError(f"runtime needs a trainjob, and job is {self.job}; set on.job to trainjob")
        if self.runtime is not None and not self.nodes.fixed:  # a runtime decides when its Job is complete
            raise ValueError(
                f"nodes is {self.nodes}, but a run with a runtime of the cluster needs a fixed number; "
                f"set on.nodes to {self.nodes.most}, or remove on.runtime"
            )
        if self.queue_make is not None and (self.queue is None or self.job not in ("vcjob", "auto")):
            raise ValueError("queue_make creates a Volcano queue; set on.queue to its name and on.job to vcjob")
        if self.autoscale and (self.job != "pytorchjob" or self.nodes.fixed):
            raise ValueError(
                "autoscale is for a pytorchjob with a range of nodes; set on.job to pytorchjob, on.nodes to 1..8"
            )
        if self.autoscale and self.cpu is None and self.instance is None:
            raise ValueError("autoscale needs the cores that a pod requests; set on.cpu")
        spec = self.pod.get("spec")
        if self.network_policy and isinstance(spec, dict) and spec.get("hostNetwork"):
            raise ValueError("network_policy has no effect with hostNetwork; remove hostNetwork from on.pod")
        if unknown := set(self.pod) - {"metadata", "spec"}:
            raise ValueError(f"pod has the unknown key {min(unknown)}; write pod: {{spec: …}} or pod: {{metadata: …}}")
        return self


SECTIONS: dict[str, type[On]] = {"local": LocalOn, "kubernetes": KubernetesOn}
"""kind -> what `on` holds there. stoker.backends has a backend for each."""


class ByKind:
    """Makes a field of type On the union of SECTIONS, discriminated by `kind`."""

    def __get_pydantic_core_schema__(self, _source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        choices = {kind: handler.generate_schema(section) for kind, section in SECTIONS.items()}
        union = core_schema.tagged_union_schema(choices, discriminator=_kind)
        return core_schema.no_info_before_validator_function(_without_defaults, union)


AnyOn = Annotated[On, ByKind()]


def _kind(value: Any) -> str:
    return str(value.get("kind", "local") if isinstance(value, dict) else getattr(value, "kind", None))


def _without_defaults(value: Any) -> Any:
    """Without the keys of other kinds that have their default values: earlier versions wrote all keys to spec.yaml."""
    section = SECTIONS.get(_kind(value)) if isinstance(value, dict) else None
    if section is None:
        return value
    defaults = {name: field.default for name, field in on_fields().items() if name not in section.model_fields}
    return {key: item for key, item in value.items() if key not in defaults or item != defaults[key]}


def on_fields() -> dict[str, FieldInfo]:
    """The fields of all kinds."""
    fields = dict(On.model_fields)
    for section in SECTIONS.values():
        fields |= {name: field for name, field in section.model_fields.items() if name not in fields}
    return fields


def kubernetes_on(spec: "HasOn") -> KubernetesOn:
    """For what is done in a cluster only."""
    if not isinstance(spec.on, KubernetesOn):
        raise UserError(f"on.kind is {spec.on.kind}, and this needs a cluster", remedy="Set on.kind=kubernetes")
    return spec.on


class HasOn(Protocol):
    @property
    def on(self) -> On: ...


def cluster_name(name: str) -> str:
    """The nearest valid name of a run in a cluster, with room for a suffix."""
    label = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "run"
    label = label if label[0].isalpha() else f"run-{label}"
    return label[: contract.MAX_RUN_NAME - contract.SUFFIX_LENGTH].strip("-")
