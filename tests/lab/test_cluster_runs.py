"""Runs on the real cluster as its API server shows them: launched, watched, stopped. Their pods play supervisors."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.backends.kubernetes.place import place_of
from stoker.cli.main import main
from stoker.rundir import RunDir
from tests.waiting import until

OTHERS = [pytest.param(name, marks=pytest.mark.soak) for name in ("jobset", "trainjob", "vcjob")]
KINDS = ["job", "pytorchjob", *OTHERS]  # in test_training.py and test_scale.py all of them are launched and stopped
KIND_WORDS = "jobsets,pytorchjobs,trainjobs,jobs.batch.volcano.sh,trainingruntimes"
PATIENCE = 300.0
LEAVES = (  # asked to end it takes a moment, as a save does, and then asks to be started again
    "import signal, sys, time, pathlib, os\n"
    "pod = os.environ['STOKER_POD']\n"
    "def leave(*_):\n"
    "    time.sleep(1); pathlib.Path(f'/stoker/left-{pod}').touch(); sys.exit(203)\n"
    "signal.signal(signal.SIGTERM, leave)\n"
    "pathlib.Path(f'/stoker/up-{sys.argv[1]}').touch()\n"
    "time.sleep(3600)\n"
)
ENDS = (
    "import sys, pathlib; mark = pathlib.Path('/stoker/mark-' + sys.argv[1]); first = not mark.exists(); mark.touch(); "
)
Stoker = Callable[..., str]


@pytest.fixture
def stoker(lab, namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> Stoker:
    """The command, its output; in a folder with a script."""
    monkeypatch.setenv("KUBECONFIG", str(lab.kubeconfig))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('hello')\n")

    def call(*words: str, code: int = 0) -> str:
        given = list(words)
        if words[0] == "launch":
            given += ["script=train.py", "on.kind=kubernetes", f"on.volume={namespace.volume}"]
            given += [f"on.image=http://{lab.base}", f"on.registry=http://{lab.registry}/tests/runs"]
            given += [f"on.namespace={namespace.name}", *(word for word in words[1:] if "=" in word)]
        assert main(given) == code, capsys.readouterr().err
        said = capsys.readouterr()
        return said.err if code else said.out

    return call


def playing(code: str) -> str:
    """A pod patch: Python code in the supervisor's place, told its node."""
    command = ["python3", "-u", "-c", code, "$(STOKER_NODE)"]
    return "on.pod=" + json.dumps({"spec": {"containers": [{"name": "pytorch", "command": command}]}})


def launched(stoker: Stoker, *words: str) -> RunDir:
    return RunDir(Path(json.loads(stoker("launch", *words, "--json"))["folder"]))


def awaited(stoker: Stoker, run: RunDir, what: Callable[[dict], bool]) -> dict:
    end = time.monotonic() + PATIENCE
    while not what(now := json.loads(stoker("status", run.name, "--json"))):
        assert time.monotonic() < end, now
        time.sleep(0.5)
    return now


def gone(namespace, run: RunDir, kinds: str) -> None:
    """Waits until the cluster has tidied up."""
    end = time.monotonic() + PATIENCE
    while left := namespace.kubectl("get", kinds, "-l", f"stoker.dev/run={run.name}", "--output=name"):
        assert time.monotonic() < end, left
        time.sleep(0.5)


def up(now: dict) -> bool:
    return now["state"] == "running" and all(pod["state"] == "Running" for pod in now["pods"])


@pytest.mark.parametrize("job", KINDS)
def test_a_run_is_watched_from_its_launch_to_its_end(
    job: str, stoker: Stoker, namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "hunter2")
    nodes = "1..2" if job == "pytorchjob" else "2"  # of a fixed number the operator pulls an image of its own
    run = launched(stoker, f"on.job={job}", f"on.nodes={nodes}", "secrets=[TOKEN]", playing(LEAVES))
    place = place_of(run)
    assert place is not None
    assert (place.run, place.namespace, place.job) == (run.name, namespace.name, job)
    now = awaited(stoker, run, up)
    assert [pod["node"] for pod in now["pods"]] == [0, 1]
    assert {pod["machine"] for pod in now["pods"]} <= {"node-1", "node-2"}
    assert all("@sha256:" in pod["image"] for pod in now["pods"])
    assert run.name in stoker("ps")
    shown = stoker("status", run.name)
    assert "2 Running" in shown
    assert "Started" in stoker("events", run.name)
    assert "has rank 0 now. See its ranks" in stoker("env", run.name, code=2)  # those that play have no workers
    assert "spec.yaml" in stoker("shell", run.name, "--", "ls")
    owned = namespace.kubectl.json("get", "secret", f"{run.name}-env")
    assert owned["metadata"]["ownerReferences"][0]["name"] == run.name
    assert "hunter2" not in shown + (run.path / "place.json").read_text() + (run.path / "spec.yaml").read_text()
    assert "has stopped" in stoker("stop", run.name)
    running = ["--field-selector=status.phase=Running", "-l", f"stoker.dev/run={run.name}", "--output=name"]
    assert namespace.kubectl("get", "pods", *running) == ""
    gone(namespace, run, f"pods,jobs.batch,service,secret,{KIND_WORDS}")
    assert "is not running" in stoker("stop", run.name)
    assert json.loads(stoker("ps", "--json"))[0]["state"] == "interrupted"
    if job in ("jobset", "trainjob"):  # whose Job is told to go a moment after the pods
        assert stoker("shell", run.name, "--", "ls", "/stoker").count("left-") == 2


def test_a_master_and_its_workers_are_nodes_in_order(stoker: Stoker, namespace) -> None:
    code = "import sys, time; print('node', sys.argv[1], flush=True); time.sleep(3600)"
    patch = playing(code).replace("$(STOKER_NODE)", "$(PET_NODE_RANK)")  # what its own command is given
    run = launched(stoker, "on.job=pytorchjob", "on.nodes=3", "on.grace=1s", patch)
    pods = awaited(stoker, run, lambda now: up(now) and len(now["pods"]) == 3)["pods"]
    names = [f"{run.name}-{name}" for name in ("master-0", "worker-0", "worker-1")]
    assert [(pod["node"], pod["pod"]) for pod in pods] == list(enumerate(names))
    for node, name in enumerate(names):
        said = ["logs", name, "--container=pytorch"]
        until(lambda said=said, node=node: namespace.kubectl(*said).strip() == f"node {node}", every_s=0.5)


@pytest.mark.parametrize("job", KINDS)
def test_a_pod_that_asks_to_be_started_again_is(job: str, stoker: Stoker) -> None:
    nodes = "1..2" if job == "pytorchjob" else "1"
    run = launched(stoker, f"on.job={job}", f"on.nodes={nodes}", playing(ENDS + "sys.exit(203 if first else 0)"))
    now = awaited(stoker, run, lambda now: now["state"] in ("done", "failed"))
    assert now["state"] == "done", now


@pytest.mark.parametrize("job", KINDS)
def test_a_fatal_end_is_not_tried_again(job: str, stoker: Stoker) -> None:
    nodes = "1..2" if job == "pytorchjob" else "1"
    run = launched(stoker, f"on.job={job}", f"on.nodes={nodes}", playing(ENDS + "print('it broke'); sys.exit(3)"))
    now = awaited(stoker, run, lambda now: now["state"] in ("done", "failed"))
    assert now["state"] == "failed"
    assert "exit code 3: it printed no error; its last line: it broke" in now["reason"]
    assert "is not running (failed)" in stoker("stop", run.name)
    assert sum(pod["restarts"] for pod in now["pods"]) == 0


@pytest.mark.parametrize("job", ["job", *(pytest.param(name, marks=pytest.mark.soak) for name in ("jobset", "vcjob"))])
def test_a_range_of_nodes_is_done_when_the_first_is(job: str, stoker: Stoker) -> None:
    code = "import sys, time; sys.exit(0) if sys.argv[1] == '0' else time.sleep(3600)"
    run = launched(stoker, f"on.job={job}", "on.nodes=1..2", "on.grace=1s", playing(code))
    assert awaited(stoker, run, lambda now: now["state"] in ("done", "failed"))["state"] == "done"


@pytest.mark.parametrize("job", ["job", pytest.param("trainjob", marks=pytest.mark.soak)])
def test_a_run_goes_on_under_its_own_name(job: str, stoker: Stoker) -> None:
    run = launched(stoker, f"on.job={job}", playing("pass"))
    awaited(stoker, run, lambda now: now["state"] == "done")
    (run.path / "seen.json").unlink(missing_ok=True)
    stoker("launch", run.name)
    awaited(stoker, run, lambda now: now["state"] == "done")


def test_a_run_that_failed_goes_on_when_its_cause_is_mended(stoker: Stoker, tmp_path: Path) -> None:
    script = "import pathlib, sys; sys.exit(0 if pathlib.Path('/stoker/mended').exists() else 7)\n"
    (tmp_path / "train.py").write_text(script)
    run = launched(stoker, "on.max_restarts=0")
    now = awaited(stoker, run, lambda now: now["state"] in ("done", "failed"))
    assert "ended with code 7" in now["reason"]
    assert f"stoker logs {run.name} " in now["remedy"]
    stoker("shell", run.name, "--", "touch", "/stoker/mended")
    stoker("launch", run.name)
    assert awaited(stoker, run, lambda now: now["state"] in ("done", "failed"))["state"] == "done"


@pytest.mark.parametrize(
    ("image", "said"), [("lab/nothing:1", "cannot be pulled"), ("lab/bare:1", "cannot start python3")]
)
def test_an_image_that_cannot_run_leaves_nothing(
    image: str, said: str, stoker: Stoker, lab, namespace, tmp_path: Path
) -> None:
    words = ["script=/app/train.py", f"on.image={lab.registry}/{image}", "on.registry=null"]
    error = stoker("launch", *words, code=2)
    assert said in error
    assert not list((tmp_path / "runs").iterdir())
    assert namespace.kubectl("get", "job,service,secret", "-l", "stoker.dev/run", "--output=name") == ""


def test_a_run_that_runs_is_not_launched_again(stoker: Stoker) -> None:
    run = launched(stoker, playing(LEAVES))
    awaited(stoker, run, up)
    assert "is already running in namespace" in stoker("launch", run.name, code=2)
    assert "is already running in namespace" in stoker("launch", run.name, "on.job=pytorchjob", code=2)


@pytest.mark.soak
def test_why_it_waits_is_told(stoker: Stoker) -> None:
    run = launched(stoker, "on.nodes=3", "on.cpu=1.2", "on.grace=1s", playing(LEAVES))  # two nodes of two cores each
    now = awaited(stoker, run, lambda now: sum(pod["state"] == "Running" for pod in now["pods"]) == 2)
    assert any("Insufficient cpu" in pod["reason"] for pod in now["pods"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["on.namespace=nowhere"], "has no namespace 'nowhere'"),
        (["on.volume=nothing"], "has no volume claim 'nothing'. There are: stoker"),
        (["on.cpu=4000"], "a pod needs 4000 cores, and the largest node has"),
        (["on.memory=90TiB"], "GiB of memory, and the largest node has"),
        (["on.gpus=3"], "a pod needs 3 nvidia.com/gpu"),
        (["on.selectors={a: b}"], "no node of the cluster has the label a=b"),
        (["on.service_account=nobody"], "ServiceAccount 'nobody'"),
        (["on.priority=highest"], "PriorityClass 'highest'"),
        (["on.context=lob"], "has no context 'lob'"),
        (["on.pod={spec: {hostnam: x}}"], "hostnam"),
        pytest.param(["on.job=jobset", "on.pod={spec: {hostnam: x}}"], "hostnam", marks=pytest.mark.soak),
        pytest.param(["on.job=jobset", "on.pod={spec: {dnsPolicy: x}}"], "dnsPolicy", marks=pytest.mark.soak),
        (["on.job=trainjob", "on.pod={spec: {dnsPolicy: x}}"], "dnsPolicy"),
        (["on.job=vcjob", "on.pod={spec: {dnsPolicy: x}}"], "dnsPolicy"),
        (["on.job=trainjob", "on.runtime=nothing"], "ClusterTrainingRuntime 'nothing'"),
        (["on.job=vcjob", "on.queue=nothing"], "names Volcano queue 'nothing', which does not exist in"),
        (["on.job=vcjob", "on.queue=nothing", "on.queue_make={wait: 1}"], "wait"),
        (["on.queue=nothing"], "has no Kueue"),
    ],
)
def test_what_cannot_work_is_found_before_anything_is_made(
    words: list[str], said: str, stoker: Stoker, namespace, tmp_path: Path
) -> None:
    error = stoker("launch", *words, code=2)
    assert said in error
    assert "Traceback" not in error
    assert not (tmp_path / "runs").exists()
    assert namespace.kubectl("get", "job,service,secret", "-l", "stoker.dev/run", "--output=name") == ""


def test_a_claim_of_one_node_is_no_claim_for_two(stoker: Stoker, namespace) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    namespace.kubectl.apply(
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "single"}, "spec": spec}
    )
    assert "may be used by one node only" in stoker("launch", "on.volume=single", "on.nodes=2", code=2)
