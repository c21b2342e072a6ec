"""Runs on the real cluster are launched, watched and stopped. Short scripts replace their supervisors."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.backends.kubernetes.place import place_of
from stoker.cli.main import main
from stoker.rundir import RunDir
from tests.waiting import PATIENCE_S, until

OTHERS = [pytest.param(name, marks=pytest.mark.soak) for name in ("jobset", "trainjob", "vcjob")]
KINDS = ["job", "pytorchjob", *OTHERS]  # in test_training.py and test_scale.py all of them are launched and stopped
JOB_KINDS = "jobsets,pytorchjobs,trainjobs,jobs.batch.volcano.sh,trainingruntimes"
LEAVES = (  # on SIGTERM it takes a second, as a save does, and then asks to be restarted
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
    """Runs the command in a folder with a script, and returns its output."""
    monkeypatch.setenv("KUBECONFIG", str(lab.kubeconfig))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('hello')\n")

    def call(*words: str, code: int = 0) -> str:
        argv = list(words)
        if words[0] == "launch":
            argv += ["script=train.py", "on.kind=kubernetes", f"on.volume={namespace.volume}"]
            argv += [f"on.image=http://{lab.base}", f"on.registry=http://{lab.registry}/tests/runs"]
            argv += [f"on.namespace={namespace.name}", *(word for word in words[1:] if "=" in word)]
        assert main(argv) == code, capsys.readouterr().err
        output = capsys.readouterr()
        return output.err if code else output.out

    return call


def replacing_supervisor(code: str) -> str:
    """A pod patch that runs Python code instead of the supervisor, with the node's index as argument."""
    command = ["python3", "-u", "-c", code, "$(STOKER_NODE)"]
    return "on.pod=" + json.dumps({"spec": {"containers": [{"name": "pytorch", "command": command}]}})


def launched(stoker: Stoker, *words: str) -> RunDir:
    return RunDir(Path(json.loads(stoker("launch", *words, "--json"))["folder"]))


def wait_for(stoker: Stoker, run: RunDir, condition: Callable[[dict], bool]) -> dict:
    """The status of the run once the condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition(now := json.loads(stoker("status", run.name, "--json"))):
        assert time.monotonic() < deadline, now
        time.sleep(0.5)
    return now


def wait_until_deleted(namespace, run: RunDir, kinds: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while remaining := namespace.kubectl("get", kinds, "-l", f"stoker.dev/run={run.name}", "--output=name"):
        assert time.monotonic() < deadline, remaining
        time.sleep(0.5)


def up(now: dict) -> bool:
    return now["state"] == "running" and all(pod["state"] == "Running" for pod in now["pods"])


@pytest.mark.parametrize("job", KINDS)
def test_a_run_is_watched_from_its_launch_to_its_end(
    job: str, stoker: Stoker, namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "hunter2")
    nodes = "1..2" if job == "pytorchjob" else "2"  # with a fixed number the operator adds an init container
    run = launched(stoker, f"on.job={job}", f"on.nodes={nodes}", "secrets=[TOKEN]", replacing_supervisor(LEAVES))
    place = place_of(run)
    assert place is not None
    assert (place.run, place.namespace, place.job) == (run.name, namespace.name, job)
    now = wait_for(stoker, run, up)
    assert [pod["node"] for pod in now["pods"]] == [0, 1]
    assert {pod["machine"] for pod in now["pods"]} <= {"node-1", "node-2"}
    assert all("@sha256:" in pod["image"] for pod in now["pods"])
    assert run.name in stoker("ps")
    status = stoker("status", run.name)
    assert "2 Running" in status
    assert "Started" in stoker("events", run.name)
    assert "has rank 0 now. See its ranks" in stoker("env", run.name, code=2)  # the scripts have no workers
    assert "spec.yaml" in stoker("shell", run.name, "--", "ls")
    secret = namespace.kubectl.json("get", "secret", f"{run.name}-env")
    assert secret["metadata"]["ownerReferences"][0]["name"] == run.name
    assert "hunter2" not in status + (run.path / "place.json").read_text() + (run.path / "spec.yaml").read_text()
    assert "has stopped" in stoker("stop", run.name)
    running = ["--field-selector=status.phase=Running", "-l", f"stoker.dev/run={run.name}", "--output=name"]
    assert namespace.kubectl("get", "pods", *running) == ""
    wait_until_deleted(namespace, run, f"pods,jobs.batch,service,secret,{JOB_KINDS}")
    assert "is not running" in stoker("stop", run.name)
    assert json.loads(stoker("ps", "--json"))[0]["state"] == "interrupted"
    if job in ("jobset", "trainjob"):  # their Job is deleted a moment after the pods
        assert stoker("shell", run.name, "--", "ls", "/stoker").count("left-") == 2


def test_a_master_and_its_workers_are_nodes_in_order(stoker: Stoker, namespace) -> None:
    code = "import sys, time; print('node', sys.argv[1], flush=True); time.sleep(3600)"
    patch = replacing_supervisor(code).replace("$(STOKER_NODE)", "$(PET_NODE_RANK)")  # as the pod's own command gets it
    run = launched(stoker, "on.job=pytorchjob", "on.nodes=3", "on.grace=1s", patch)
    pods = wait_for(stoker, run, lambda now: up(now) and len(now["pods"]) == 3)["pods"]
    names = [f"{run.name}-{name}" for name in ("master-0", "worker-0", "worker-1")]
    assert [(pod["node"], pod["pod"]) for pod in pods] == list(enumerate(names))
    for node, name in enumerate(names):
        logs = ["logs", name, "--container=pytorch"]
        until(lambda logs=logs, node=node: namespace.kubectl(*logs).strip() == f"node {node}", every_s=0.5)


@pytest.mark.parametrize("job", KINDS)
def test_a_pod_that_asks_for_a_restart_is_restarted(job: str, stoker: Stoker) -> None:
    nodes = "1..2" if job == "pytorchjob" else "1"
    run = launched(
        stoker, f"on.job={job}", f"on.nodes={nodes}", replacing_supervisor(ENDS + "sys.exit(203 if first else 0)")
    )
    now = wait_for(stoker, run, lambda now: now["state"] in ("done", "failed"))
    assert now["state"] == "done", now


@pytest.mark.parametrize("job", KINDS)
def test_a_fatal_exit_is_not_retried(job: str, stoker: Stoker) -> None:
    nodes = "1..2" if job == "pytorchjob" else "1"
    run = launched(
        stoker, f"on.job={job}", f"on.nodes={nodes}", replacing_supervisor(ENDS + "print('it broke'); sys.exit(3)")
    )
    now = wait_for(stoker, run, lambda now: now["state"] in ("done", "failed"))
    assert now["state"] == "failed"
    assert "exit code 3: it printed no error; its last line: it broke" in now["reason"]
    assert "is not running (failed)" in stoker("stop", run.name)
    assert sum(pod["restarts"] for pod in now["pods"]) == 0


@pytest.mark.parametrize("job", ["job", *(pytest.param(name, marks=pytest.mark.soak) for name in ("jobset", "vcjob"))])
def test_a_range_of_nodes_is_done_when_the_first_is(job: str, stoker: Stoker) -> None:
    code = "import sys, time; sys.exit(0) if sys.argv[1] == '0' else time.sleep(3600)"
    run = launched(stoker, f"on.job={job}", "on.nodes=1..2", "on.grace=1s", replacing_supervisor(code))
    assert wait_for(stoker, run, lambda now: now["state"] in ("done", "failed"))["state"] == "done"


@pytest.mark.parametrize("job", ["job", pytest.param("trainjob", marks=pytest.mark.soak)])
def test_a_run_is_launched_again_under_its_name(job: str, stoker: Stoker) -> None:
    run = launched(stoker, f"on.job={job}", replacing_supervisor("pass"))
    wait_for(stoker, run, lambda now: now["state"] == "done")
    (run.path / "seen.json").unlink(missing_ok=True)
    stoker("launch", run.name)
    wait_for(stoker, run, lambda now: now["state"] == "done")


def test_a_failed_run_resumes_once_its_cause_is_fixed(stoker: Stoker, tmp_path: Path) -> None:
    script = "import pathlib, sys; sys.exit(0 if pathlib.Path('/stoker/fixed').exists() else 7)\n"
    (tmp_path / "train.py").write_text(script)
    run = launched(stoker, "on.max_restarts=0")
    now = wait_for(stoker, run, lambda now: now["state"] in ("done", "failed"))
    assert "ended with code 7" in now["reason"]
    assert f"stoker logs {run.name} " in now["remedy"]
    stoker("shell", run.name, "--", "touch", "/stoker/fixed")
    stoker("launch", run.name)
    assert wait_for(stoker, run, lambda now: now["state"] in ("done", "failed"))["state"] == "done"


@pytest.mark.parametrize(
    ("image", "error"), [("lab/nothing:1", "cannot be pulled"), ("lab/bare:1", "cannot start python3")]
)
def test_an_image_that_cannot_run_leaves_nothing_behind(
    image: str, error: str, stoker: Stoker, lab, namespace, tmp_path: Path
) -> None:
    overrides = ["script=/app/train.py", f"on.image={lab.registry}/{image}", "on.registry=null"]
    assert error in stoker("launch", *overrides, code=2)
    assert not list((tmp_path / "runs").iterdir())
    assert namespace.kubectl("get", "job,service,secret", "-l", "stoker.dev/run", "--output=name") == ""


def test_a_running_run_is_not_launched_again(stoker: Stoker) -> None:
    run = launched(stoker, replacing_supervisor(LEAVES))
    wait_for(stoker, run, up)
    assert "is already running in namespace" in stoker("launch", run.name, code=2)
    assert "is already running in namespace" in stoker("launch", run.name, "on.job=pytorchjob", code=2)


@pytest.mark.soak
def test_the_status_shows_why_a_pod_waits(stoker: Stoker) -> None:
    run = launched(
        stoker, "on.nodes=3", "on.cpu=1.2", "on.grace=1s", replacing_supervisor(LEAVES)
    )  # two nodes of two cores each
    now = wait_for(stoker, run, lambda now: sum(pod["state"] == "Running" for pod in now["pods"]) == 2)
    assert any("Insufficient cpu" in pod["reason"] for pod in now["pods"])


@pytest.mark.parametrize(
    ("overrides", "error"),
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
def test_a_run_that_cannot_work_is_refused_before_anything_is_created(
    overrides: list[str], error: str, stoker: Stoker, namespace, tmp_path: Path
) -> None:
    message = stoker("launch", *overrides, code=2)
    assert error in message
    assert "Traceback" not in message
    assert not (tmp_path / "runs").exists()
    assert namespace.kubectl("get", "job,service,secret", "-l", "stoker.dev/run", "--output=name") == ""


def test_a_claim_for_one_node_is_refused_for_two(stoker: Stoker, namespace) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    namespace.kubectl.apply(
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "single"}, "spec": spec}
    )
    assert "may be used by one node only" in stoker("launch", "on.volume=single", "on.nodes=2", code=2)
