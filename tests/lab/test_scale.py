"""A run on the real cluster is scaled while it trains: its losses are those of a run that is not scaled."""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.api.run import open_run
from stoker.backends.kubernetes.place import place_of
from stoker.backends.kubernetes.scale import scale_patch
from stoker.cli.main import main
from stoker.kube import connect
from stoker.observe.audit import audit
from stoker.rundir import RunDir
from stoker.spec import contract
from stoker.spec.on import Nodes
from tests.lab.holding import HOLD_OVERRIDE, last_step, losses, on_the_volume, release, until, write_hold
from tests.written import events_of

STEPS = 60
HOLDS = (10, 20, 30)
TRAINING = [
    "model.layers=1", "model.heads=2", "model.width=32", "model.context=64", "data.tokenizer.train=300",
    "batch.sequences=8", "batch.length=32", f"until.steps={STEPS}", "checkpoint.every=50", "eval.every=0",
    "log.every=1", "log.tensorboard=false", "precision=fp32", "compile=false", "on.workers=1",
    "env={OMP_NUM_THREADS: '1'}",
]  # fmt: skip
KINDS = [
    pytest.param("job", "1", ["2", "1"], "live", id="job"),
    pytest.param("job", "1..2", ["1..3", "1..2"], "live", id="ranges", marks=pytest.mark.soak),
    pytest.param("pytorchjob", "2", ["3", "2"], "live", id="master-and-workers", marks=pytest.mark.soak),
    pytest.param("pytorchjob", "1..2", ["1", "2", "1"], "live", id="pytorchjob"),  # elastic
    pytest.param("pytorchjob", "1", ["2", "1"], "resubmitted", id="master", marks=pytest.mark.soak),
    pytest.param("jobset", "1", ["2", "1"], "live", id="jobset"),
    pytest.param("trainjob", "1", ["2", "1"], "resubmitted", id="trainjob"),
    pytest.param("vcjob", "1", ["2", "1"], "resubmitted", id="vcjob"),
]


@pytest.fixture
def stoker(lab, namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> Callable[..., str]:
    """Runs the command and returns its output. `launch` gets the lab's settings of `on`."""
    monkeypatch.setenv("KUBECONFIG", str(lab.kubeconfig))
    monkeypatch.chdir(tmp_path)
    write_hold(tmp_path, HOLDS)
    monkeypatch.syspath_prepend(str(tmp_path))

    def call(*words: str, code: int = 0) -> str:
        verb, *more = words
        on = ["on.kind=kubernetes", f"on.volume={namespace.volume}", f"on.namespace={namespace.name}"]
        on += [f"on.image=http://{lab.base}", f"on.registry=http://{lab.registry}/tests/runs", "on.cpu=0.1"]
        assert main([verb, *(on if verb == "launch" else []), *more]) == code, capsys.readouterr().err
        output = capsys.readouterr()
        return output.err if code else output.out

    return call


@pytest.fixture(scope="module")
def losses_here(books: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of the same run with one worker on this machine."""
    runs = tmp_path_factory.mktemp("here")
    assert main(["train", f"data.path={books}", *TRAINING, "name=here", "--runs", str(runs)]) == 0
    return losses(RunDir(runs / "here"))


@pytest.mark.parametrize(("job", "nodes", "sizes", "how"), KINDS)
def test_a_scaled_run_trains_like_one_that_is_not_scaled(
    job: str, nodes: str, sizes: list[str], how: str, books: Path, losses_here: list[float], stoker, tmp_path: Path
) -> None:
    overrides = [f"data.path={books}", *TRAINING, HOLD_OVERRIDE, f"on.job={job}", f"on.nodes={nodes}"]
    run = RunDir(Path(json.loads(stoker("launch", *overrides, "--json"))["folder"]))
    on_volume = on_the_volume(run)
    for unused in HOLDS[len(sizes) :]:
        release(on_volume, unused)

    for step, size in zip(HOLDS, sizes, strict=False):
        until(lambda step=step: last_step(on_volume) >= step, on_volume)
        requests = len(save_requests(on_volume))
        with ThreadPoolExecutor(1) as pool:
            scaling = pool.submit(open_run(run.path).scale, size)
            until(
                lambda n=requests, scaling=scaling: len(save_requests(on_volume)) > n or has_failed(scaling), on_volume
            )
            release(on_volume, step)
            assert scaling.result().how == how
        now = json.loads(stoker("status", run.name, "--json"))
        assert now["wanted"] == run.any_spec().on.nodes == on_volume.any_spec().on.nodes == size
    until(lambda: on_volume.exit() is not None and on_volume.exit().state == "done", on_volume)

    events = since_first_attempt(on_volume)
    worlds = [len(event["nodes"]) for event in events if event["kind"] == "world"]
    sizes_reached = [Nodes(size).most for size in (nodes, *sizes)][-3:]
    assert [number for n, number in enumerate(worlds) if number != worlds[n - 1] or not n][-3:] == sizes_reached
    first = HOLDS[0] if nodes == "1" else 0
    assert losses(on_volume)[:first] == losses_here[:first]  # bit for bit
    assert losses(on_volume) == pytest.approx(losses_here, abs=1e-5)
    assert len((on_volume.path / "metrics.jsonl").read_text().splitlines()) == STEPS, "a step was trained twice"
    waits = ("waiting for nodes",) if how == "live" else ()  # the pods of another job do not start at the same moment
    assert not [event for event in events if event["kind"] in ("failed", "lost", *waits)]
    assert_proven(on_volume, tmp_path)
    until(lambda: "is not running (done)" in scale_refused(stoker, run), on_volume)


def test_a_run_is_scaled_to_more_nodes_than_fit_and_back(stoker, books: Path) -> None:
    overrides = [f"data.path={books}", *TRAINING, HOLD_OVERRIDE, "on.cpu=1.2", "on.grace=1s"]
    run = RunDir(Path(json.loads(stoker("launch", *overrides, "--json"))["folder"]))
    on_volume = on_the_volume(run)
    until(lambda: last_step(on_volume) >= HOLDS[0], on_volume)
    assert f"run '{run.name}' has 1 node already" in stoker("scale", run.name, "1")
    output = stoker("scale", run.name, "3")  # the cluster has two nodes of two cores each
    assert "the cluster has room for 2 of its 3 nodes now" in output
    assert f"run '{run.name}' is scaled from 1 to 3 nodes" in output
    until(lambda: scaled_to(on_volume) == ["3"], on_volume)
    assert json.loads(stoker("scale", run.name, "1", "--json"))["how"] == "live"
    until(lambda: scaled_to(on_volume) == ["3", "1"], on_volume)
    assert save_requests(on_volume) == [], "the run was interrupted although its nodes did not change"
    stoker("stop", run.name)
    assert f"stoker launch {run.name} on.nodes=2" in stoker("scale", run.name, "2", code=2)


@pytest.mark.soak
def test_an_interrupted_change_is_completed_when_the_command_is_repeated(stoker, books: Path) -> None:
    overrides = [f"data.path={books}", *TRAINING, HOLD_OVERRIDE]
    run = RunDir(Path(json.loads(stoker("launch", *overrides, "--json"))["folder"]))
    on_volume = on_the_volume(run)
    until(lambda: last_step(on_volume) >= HOLDS[0], on_volume)

    place = place_of(run)
    cluster = connect(place.context, place.namespace)
    job = cluster.get("Job", place.run)
    cluster.patch("Job", place.run, scale_patch(place, job, run.any_spec(), Nodes("2")))  # and nothing else
    labels, running = {contract.LABEL_RUN: place.run}, {"status.phase": "Running"}
    until(lambda: len(list(cluster.list("Pod", labels=labels, fields=running))) == 2, on_volume)
    release(on_volume, HOLDS[0])
    until(lambda: last_step(on_volume) >= HOLDS[1], on_volume)
    assert save_requests(on_volume) == [], "the run was interrupted by a pod that does not belong to it yet"

    done = json.loads(stoker("scale", run.name, "2", "--json"))
    assert (done["how"], done["was"], run.any_spec().on.nodes) == ("live", "1", "2")
    until(lambda: save_requests(on_volume), on_volume)
    release(on_volume, HOLDS[1])
    until(lambda: last_step(on_volume) >= HOLDS[2], on_volume)
    assert [len(event["nodes"]) for event in events_of(on_volume) if event["kind"] == "world"] == [1, 2]
    stoker("stop", run.name)


def test_the_cluster_accepts_an_autoscaled_pytorchjob(stoker) -> None:
    overrides = ["script=train.py", "on.job=pytorchjob", "on.nodes=1..4", "on.autoscale={cpu: 80}"]
    [job] = json.loads(stoker("launch", *overrides, "--dry-run", "--json"))["objects"]
    assert job["spec"]["elasticPolicy"]["metrics"][0]["resource"]["name"] == "cpu"


def save_requests(run: RunDir) -> list[dict]:
    """The events at which the workers were asked to save and exit."""
    return [event for event in events_of(run) if event["kind"] in ("regrouping", "stopping")]


def scaled_to(run: RunDir) -> list[str]:
    """The numbers of nodes that the leader has read."""
    return [event["nodes"] for event in events_of(run) if event["kind"] == "scaled"]


def since_first_attempt(run: RunDir) -> list[dict]:
    """The events without those of the first pods that wait for each other."""
    events = events_of(run)
    first = next(n for n, event in enumerate(events) if event["kind"] == "world")
    return events[first:]


def has_failed(scaling) -> bool:
    return scaling.done() and scaling.exception() is not None


def scale_refused(stoker, run: RunDir) -> str:
    """The error of a `scale`, or empty: the job is done a moment after the run."""
    try:
        return stoker("scale", run.name, "2", code=2)
    except AssertionError:
        return ""


def assert_proven(run: RunDir, folder: Path) -> None:
    """Audit a copy of the run. The path of its tokens is that in a pod, and is replaced."""
    copy = RunDir(folder / "copy" / run.name)
    shutil.copytree(run.path, copy.path, ignore=shutil.ignore_patterns(".members"))  # its leader may be deleting it
    data = run.data()
    copy.write_data(replace(data, shards=str(run.path.parents[1] / Path(data.shards).relative_to("/stoker"))))
    result = audit(copy)
    assert result.ok, result.problems
