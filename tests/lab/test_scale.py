"""A run of the real cluster gets other nodes while it trains: its losses are those of one that is left alone."""

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
from tests.lab.holding import WORD, last_step, let_go, losses, on_the_volume, until, write_hold
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
    """The command, its output; `launch` is given the cluster's places."""
    monkeypatch.setenv("KUBECONFIG", str(lab.kubeconfig))
    monkeypatch.chdir(tmp_path)
    write_hold(tmp_path, HOLDS)
    monkeypatch.syspath_prepend(str(tmp_path))

    def call(*words: str, code: int = 0) -> str:
        verb, *more = words
        places = ["on.kind=kubernetes", f"on.volume={namespace.volume}", f"on.namespace={namespace.name}"]
        places += [f"on.image=http://{lab.base}", f"on.registry=http://{lab.registry}/tests/runs", "on.cpu=0.1"]
        assert main([verb, *(places if verb == "launch" else []), *more]) == code, capsys.readouterr().err
        said = capsys.readouterr()
        return said.err if code else said.out

    return call


@pytest.fixture(scope="module")
def losses_here(books: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Of the same run, left alone, with one worker on this machine."""
    runs = tmp_path_factory.mktemp("here")
    assert main(["train", f"data.path={books}", *TRAINING, "name=here", "--runs", str(runs)]) == 0
    return losses(RunDir(runs / "here"))


@pytest.mark.parametrize(("job", "nodes", "sizes", "how"), KINDS)
def test_a_run_that_is_scaled_trains_as_one_that_is_left_alone(
    job: str, nodes: str, sizes: list[str], how: str, books: Path, losses_here: list[float], stoker, tmp_path: Path
) -> None:
    words = [f"data.path={books}", *TRAINING, WORD, f"on.job={job}", f"on.nodes={nodes}"]
    run = RunDir(Path(json.loads(stoker("launch", *words, "--json"))["folder"]))
    there = on_the_volume(run)
    for unused in HOLDS[len(sizes) :]:
        let_go(there, unused)

    for step, size in zip(HOLDS, sizes, strict=False):
        until(lambda step=step: last_step(there) >= step, there)
        asked = len(asks(there))
        with ThreadPoolExecutor(1) as pool:
            scaling = pool.submit(open_run(run.path).scale, size)
            until(lambda asked=asked, scaling=scaling: len(asks(there)) > asked or failure(scaling), there)
            let_go(there, step)
            assert scaling.result().how == how
        now = json.loads(stoker("status", run.name, "--json"))
        assert now["wanted"] == run.any_spec().on.nodes == there.any_spec().on.nodes == size
    until(lambda: there.exit() is not None and there.exit().state == "done", there)

    story = since_it_trains(there)
    worlds = [len(event["nodes"]) for event in story if event["kind"] == "world"]
    grown = [Nodes(size).most for size in (nodes, *sizes)][-3:]
    assert [number for n, number in enumerate(worlds) if number != worlds[n - 1] or not n][-3:] == grown
    first = HOLDS[0] if nodes == "1" else 0
    assert losses(there)[:first] == losses_here[:first]  # bit for bit
    assert losses(there) == pytest.approx(losses_here, abs=1e-5)
    assert len((there.path / "metrics.jsonl").read_text().splitlines()) == STEPS, "a step was trained twice"
    waits = ("waiting for nodes",) if how == "live" else ()  # the pods of another job do not start at the same moment
    assert not [event for event in story if event["kind"] in ("failed", "lost", *waits)]
    assert_proven(there, tmp_path)
    until(lambda: "is not running (done)" in scale_refused(stoker, run), there)


def test_a_run_has_as_many_nodes_as_it_is_told(stoker, books: Path) -> None:
    words = [f"data.path={books}", *TRAINING, WORD, "on.cpu=1.2", "on.grace=1s"]
    run = RunDir(Path(json.loads(stoker("launch", *words, "--json"))["folder"]))
    there = on_the_volume(run)
    until(lambda: last_step(there) >= HOLDS[0], there)
    assert f"run '{run.name}' has 1 node already" in stoker("scale", run.name, "1")
    said = stoker("scale", run.name, "3")  # the cluster has two nodes of two cores each
    assert "the cluster has room for 2 of its 3 nodes now" in said
    assert f"run '{run.name}' is scaled from 1 to 3 nodes" in said
    until(lambda: scaled(there) == ["3"], there)
    assert json.loads(stoker("scale", run.name, "1", "--json"))["how"] == "live"
    until(lambda: scaled(there) == ["3", "1"], there)
    assert asks(there) == [], "the run was disturbed, though it has the nodes that it had"
    stoker("stop", run.name)
    assert f"stoker launch {run.name} on.nodes=2" in stoker("scale", run.name, "2", code=2)


@pytest.mark.soak
def test_a_change_that_was_cut_off_is_done_when_it_is_typed_again(stoker, books: Path) -> None:
    words = [f"data.path={books}", *TRAINING, WORD]
    run = RunDir(Path(json.loads(stoker("launch", *words, "--json"))["folder"]))
    there = on_the_volume(run)
    until(lambda: last_step(there) >= HOLDS[0], there)

    place = place_of(run)
    cluster = connect(place.context, place.namespace)
    job = cluster.get("Job", place.run)
    cluster.patch("Job", place.run, scale_patch(place, job, run.any_spec(), Nodes("2")))  # and no more
    ours, up = {contract.LABEL_RUN: place.run}, {"status.phase": "Running"}
    until(lambda: len(list(cluster.list("Pod", labels=ours, fields=up))) == 2, there)
    let_go(there, HOLDS[0])
    until(lambda: last_step(there) >= HOLDS[1], there)
    assert asks(there) == [], "a pod that nobody has told of disturbed the run"

    done = json.loads(stoker("scale", run.name, "2", "--json"))
    assert (done["how"], done["was"], run.any_spec().on.nodes) == ("live", "1", "2")
    until(lambda: asks(there), there)
    let_go(there, HOLDS[1])
    until(lambda: last_step(there) >= HOLDS[2], there)
    assert [len(event["nodes"]) for event in events_of(there) if event["kind"] == "world"] == [1, 2]
    stoker("stop", run.name)


def test_the_cluster_takes_an_autoscaled_pytorchjob(stoker) -> None:
    words = ["script=train.py", "on.job=pytorchjob", "on.nodes=1..4", "on.autoscale={cpu: 80}"]
    [job] = json.loads(stoker("launch", *words, "--dry-run", "--json"))["objects"]
    assert job["spec"]["elasticPolicy"]["metrics"][0]["resource"]["name"] == "cpu"


def asks(run: RunDir) -> list[dict]:
    """When its workers were asked to save and end."""
    return [event for event in events_of(run) if event["kind"] in ("regrouping", "stopping")]


def scaled(run: RunDir) -> list[str]:
    """The numbers that its leader has seen."""
    return [event["nodes"] for event in events_of(run) if event["kind"] == "scaled"]


def since_it_trains(run: RunDir) -> list[dict]:
    """Its first pods may wait for each other."""
    events = events_of(run)
    first = next(n for n, event in enumerate(events) if event["kind"] == "world")
    return events[first:]


def failure(scaling) -> bool:
    return scaling.done() and scaling.exception() is not None


def scale_refused(stoker, run: RunDir) -> str:
    """Its job is not done at once when the run is."""
    try:
        return stoker("scale", run.name, "2", code=2)
    except AssertionError:
        return ""


def assert_proven(run: RunDir, folder: Path) -> None:
    """Its tokens have another name in a pod."""
    copy = RunDir(folder / "copy" / run.name)
    shutil.copytree(run.path, copy.path, ignore=shutil.ignore_patterns(".members"))  # its leader is about to go
    data = run.data()
    copy.write_data(replace(data, shards=str(run.path.parents[1] / Path(data.shards).relative_to("/stoker"))))
    found = audit(copy)
    assert found.ok, found.problems
