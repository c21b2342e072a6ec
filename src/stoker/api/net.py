"""The network between the nodes of a run or a cluster, measured from the run's pods or from temporary ones."""

import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from stoker.backends.kubernetes.job_control import has_not_ended
from stoker.backends.kubernetes.jobs import job_kind
from stoker.backends.kubernetes.needs import needs
from stoker.backends.kubernetes.place import ClusterPlace, place_of
from stoker.backends.kubernetes.state import evenly, is_up, job_state
from stoker.backends.kubernetes.volume.execution import Execution
from stoker.image.base import BuildProgress
from stoker.image.build import ensure_image
from stoker.image.reference import without_scheme
from stoker.kube import Cluster, Object, connect
from stoker.net.agent_client import ARGV, AgentClient
from stoker.net.measure import probe
from stoker.net.pods import services, sites, temporary_pods
from stoker.net.survey import NetworkSurvey, SurveyPlace
from stoker.rundir import RunDir, consent
from stoker.rundir.commands import command_name
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.on import Nodes, cluster_name, kubernetes_on
from stoker.spec.run import AnySpec


def survey_run(run: RunDir, *, nodes: int | None, gpus: bool) -> NetworkSurvey:
    """Measure from the run's own pods or, with `nodes` or when none runs, from temporary pods like them."""
    if run.location().is_here:
        raise UserError(
            f"run '{run.name}' runs on this machine, and has no network between nodes",
            remedy="Name a run in a cluster, or probe the cluster: stoker net --nodes 2 on.image=…",
        )
    place = place_of(run)
    cluster = connect(place.context, place.namespace)
    spec = run.any_spec()
    live = _live(cluster, place.run, job_kind(place.job).node)
    name = command_name(run)
    survey_place = replace(
        _place(cluster, spec),
        run=name,
        again=f"stoker stop {name} && stoker launch {name}" if live else f"stoker launch {name}",
    )
    if not nodes and not live:
        _require_not_ended(cluster, run, place)
    if nodes or not live:
        consent.require_image(run, place.image)
        count = nodes or kubernetes_on(spec).nodes.most
        survey = _from_temporary_pods(cluster, spec, name=place.run, image=place.image, nodes=count, gpus=gpus)
        return replace(survey, place=survey_place)
    if gpus:
        raise UserError(
            f"the GPUs of run '{run.name}' are in use by its workers",
            remedy=f"Stop it first with: stoker stop {name}; or test other nodes with --nodes N",
        )
    survey = _from_pods(cluster, live, spec, image=place.image, container=job_kind(place.job).CONTAINER, live=True)
    return replace(survey, place=survey_place)


def _require_not_ended(cluster: Cluster, run: RunDir, place: ClusterPlace) -> None:
    """A run whose pods have not started is measured from temporary pods; a run that has ended needs --nodes."""
    state = job_state(cluster, place, cluster.get(job_kind(place.job).KIND, place.run))
    if has_not_ended(state):
        return
    name = command_name(run)
    raise UserError(
        f"run '{run.name}' has ended ({state.state if state else 'its job was deleted'}) and has no pods",
        remedy=f"Measure from temporary pods: stoker net {name} --nodes {kubernetes_on(run.any_spec()).nodes.most}; "
        f"or start it again: stoker launch {name}",
    )


def survey_cluster(
    spec: AnySpec, *, nodes: int | None, gpus: bool, progress: BuildProgress = lambda *_: None
) -> NetworkSurvey:
    """Measure without a run, from temporary pods like those of this spec."""
    on = kubernetes_on(spec)
    if on.image is None:
        raise UserError(
            "on.image is missing",
            remedy="Name an image that has Stoker, or one with Python and a registry to push a new one to: "
            "on.image=… on.registry=…",
        )
    cluster = connect(on.context, on.namespace)
    built = ensure_image(spec, base=on.image, repository=on.registry, progress=progress) if on.registry else on.image
    image = without_scheme(str(built))
    count = nodes or on.nodes.most
    survey = _from_temporary_pods(cluster, spec, name=cluster_name(spec.name), image=image, nodes=count, gpus=gpus)
    return replace(survey, place=_place(cluster, spec))


def _place(cluster: Cluster, spec: AnySpec) -> SurveyPlace:
    return SurveyPlace(
        anywhere=cluster.kubectl_anywhere, kubectl=cluster.kubectl, avoid=tuple(kubernetes_on(spec).avoid)
    )


def _live(cluster: Cluster, run: str, node: Callable[[Object], int | None]) -> list[Object]:
    pods = cluster.list("Pod", labels={contract.LABEL_RUN: run}, fields={"status.phase": "Running"})
    return sorted((pod for pod in pods if is_up(pod)), key=lambda pod: (node(pod) or 0, pod["metadata"]["name"]))


def _from_temporary_pods(
    cluster: Cluster, spec: AnySpec, *, name: str, image: str, nodes: int, gpus: bool
) -> NetworkSurvey:
    if gpus and any(name.endswith("/neuron") for name in needs(spec, name).devices):
        raise UserError("--gpus tests GPUs, and these nodes have Neuron devices", remedy="Leave --gpus out")
    fixed = spec.model_copy(update={"on": kubernetes_on(spec).model_copy(update={"nodes": Nodes(str(nodes))})})
    with temporary_pods(cluster, fixed, name=name, image=image, gpus=gpus) as pods:
        return _from_pods(cluster, pods, fixed, image=image, container=contract.CONTAINER, live=False, gpus=gpus)


def _from_pods(
    cluster: Cluster,
    pods: Sequence[Object],
    spec: AnySpec,
    *,
    image: str,
    container: str,
    live: bool,
    gpus: bool = False,
) -> NetworkSurvey:
    wanted = needs(spec, "net")
    with ExitStack() as stack:
        agents = []
        for site in sites(evenly(pods), services(cluster)):
            stream = Execution(cluster, site.pod, ARGV, container=container, image=image)
            stack.callback(stream.close)
            agents.append(AgentClient(site, stream))
        return probe(
            agents,
            token=secrets.token_hex(16),
            port=contract.NODES_PORT,
            live=live,
            nodes=len(pods),
            env=dict(spec.env),
            preflight=[wanted.device, str(wanted.gpus or wanted.workers)] if gpus else None,
        )
