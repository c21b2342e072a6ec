"""What lies between the nodes of a run, or of a cluster: seen from the run's own pods, or from some made for it."""

import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from stoker.api.cluster import with_image
from stoker.kube import Cluster, Object, connect
from stoker.launch.command_word import command_word
from stoker.launch.execution import Execution
from stoker.launch.image.base import Progress as Building
from stoker.launch.image.reference import without_scheme
from stoker.launch.jobs import job_kind
from stoker.launch.kubernetes import has_not_ended
from stoker.launch.needs import needs
from stoker.launch.probe.agents import ARGV, Agent
from stoker.launch.probe.conduct import conduct
from stoker.launch.probe.pods import evenly, headless, made, sites
from stoker.launch.probe.survey import Place, Survey
from stoker.launch.reader import runs
from stoker.launch.standing import standing
from stoker.rundir import PlaceRef, RunDir, consent
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.on import Nodes, cluster_name
from stoker.spec.run import AnySpec


def between_nodes_of(run: RunDir, *, nodes: int | None, gpus: bool) -> Survey:
    """`nodes`: of pods like the run's own that are made for this, even while it runs."""
    place = run.place_ref()
    if place is None:
        raise UserError(
            f"run '{run.name}' lives here, and has no network between nodes",
            remedy="Name a run in a cluster, or look at the cluster: stoker net --nodes 2 on.image=…",
        )
    cluster = connect(place.context, place.namespace)
    spec = run.any_spec()
    live = _live(cluster, place.run, job_kind(place.job).node)
    word = command_word(run)
    about = replace(
        _place(cluster, spec),
        run=word,
        again=f"stoker stop {word} && stoker launch {word}" if live else f"stoker launch {word}",
    )
    if not nodes and not live:
        _check_not_over(cluster, run, place)
    if nodes or not live:
        consent.require_pods(run, place)
        wanted = nodes or spec.on.nodes.most
        survey = _with_pods(cluster, spec, name=place.run, image=place.image, nodes=wanted, gpus=gpus)
        return replace(survey, place=about)
    if gpus:
        raise UserError(
            f"the workers of run '{run.name}' use its GPUs now",
            remedy=f"Stop it first with: stoker stop {word}; or try other nodes with --nodes N",
        )
    survey = _look(cluster, live, spec, image=place.image, container=job_kind(place.job).CONTAINER, live=True)
    return replace(survey, place=about)


def _check_not_over(cluster: Cluster, run: RunDir, place: PlaceRef) -> None:
    """A run that waits for its pods may be looked at from others; one that has ended has no network to look at."""
    state = standing(cluster, place, cluster.get(job_kind(place.job).KIND, place.run))
    if has_not_ended(state):
        return
    word = command_word(run)
    raise UserError(
        f"run '{run.name}' is over ({state.state if state else 'its job is gone'}) and has no pods to look from",
        remedy=f"Look from pods made for it: stoker net {word} --nodes {run.any_spec().on.nodes.most}; "
        f"or start it again: stoker launch {word}",
    )


def between_nodes(spec: AnySpec, *, nodes: int | None, gpus: bool, progress: Building = lambda *_: None) -> Survey:
    """Without a run: pods as this one's would be."""
    on = spec.on
    if on.image is None:
        raise UserError(
            "on.image is missing",
            remedy="Name one with Stoker in it, or where it is laid over one with Python: on.image=… on.registry=…",
        )
    cluster = connect(on.context, on.namespace)
    ready = with_image(spec, progress)
    image = without_scheme(str(ready.on.image))
    wanted = nodes or on.nodes.most
    survey = _with_pods(cluster, spec, name=cluster_name(spec.name), image=image, nodes=wanted, gpus=gpus)
    return replace(survey, place=_place(cluster, spec))


def _place(cluster: Cluster, spec: AnySpec) -> Place:
    return Place(anywhere=cluster.kubectl_anywhere, kubectl=cluster.kubectl, avoid=tuple(spec.on.avoid))


def _live(cluster: Cluster, run: str, node: Callable[[Object], int | None]) -> list[Object]:
    found = cluster.list("Pod", labels={contract.LABEL_RUN: run}, fields={"status.phase": "Running"})
    return sorted((pod for pod in found if runs(pod)), key=lambda pod: (node(pod) or 0, pod["metadata"]["name"]))


def _with_pods(cluster: Cluster, spec: AnySpec, *, name: str, image: str, nodes: int, gpus: bool) -> Survey:
    if gpus and any(name.endswith("/neuron") for name in needs(spec, name).devices):
        raise UserError("the preflight is for GPUs, and these are Neuron devices", remedy="Leave --gpus out")
    fixed = spec.model_copy(update={"on": spec.on.model_copy(update={"nodes": Nodes(str(nodes))})})
    with made(cluster, fixed, name=name, image=image, gpus=gpus) as pods:
        return _look(cluster, pods, fixed, image=image, container=contract.CONTAINER, live=False, gpus=gpus)


def _look(
    cluster: Cluster,
    pods: Sequence[Object],
    spec: AnySpec,
    *,
    image: str,
    container: str,
    live: bool,
    gpus: bool = False,
) -> Survey:
    wanted = needs(spec, "net")
    with ExitStack() as stack:
        agents = []
        for site in sites(evenly(pods), headless(cluster)):
            stream = Execution(cluster, site.pod, ARGV, container=container, image=image)
            stack.callback(stream.close)
            agents.append(Agent(site, stream))
        return conduct(
            agents,
            token=secrets.token_hex(16),
            port=contract.NODES_PORT,
            live=live,
            nodes=len(pods),
            env=dict(spec.env),
            preflight=[wanted.device, str(wanted.gpus or wanted.workers)] if gpus else None,
        )
