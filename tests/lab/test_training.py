"""Real training on the real cluster has the losses of this machine, whatever is killed; its records stay."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.backends.kubernetes.jobs import job_kind
from stoker.cli.main import main
from stoker.rundir import RunDir
from tests.lab.holding import HOLD_OVERRIDE, last_step, losses, on_the_volume, release, until, write_hold
from tests.waiting import PATIENCE_S

KINDS = ["job", "jobset", "pytorchjob", "trainjob", "vcjob"]
STEPS = 100
HOLDS = (30, 70)
FEW = 30  # steps of a run that is not disturbed
TRAINING = [
    "model.layers=1", "model.heads=2", "model.width=32", "model.context=64", "data.tokenizer.train=300",
    "batch.sequences=8", "batch.length=32", f"until.steps={STEPS}", "checkpoint.every=20", "eval.every=0",
    "log.every=1", "log.tensorboard=false", "precision=fp32", "compile=false",
]  # fmt: skip
SCRIPT = Path(__file__).parents[2] / "examples" / "03-script" / "train.py"
Stoker = Callable[..., str]


@pytest.fixture
def stoker(lab, namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> Stoker:
    """Runs the command and returns its output. `launch` gets the lab's settings of `on`."""
    monkeypatch.setenv("KUBECONFIG", str(lab.kubeconfig))
    monkeypatch.chdir(tmp_path)
    write_hold(tmp_path, HOLDS)
    monkeypatch.syspath_prepend(str(tmp_path))

    def call(*words: str) -> str:
        argv = list(words)
        if words[0] == "launch":
            argv += ["on.kind=kubernetes", f"on.volume={namespace.volume}", f"on.namespace={namespace.name}"]
            argv += [f"on.image=http://{lab.base}", f"on.registry=http://{lab.registry}/tests/runs", "on.cpu=0.1"]
        assert main(argv) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return call


@pytest.fixture(scope="module")
def losses_here(books: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of the same run with four workers on this machine."""
    return trained_here(books, tmp_path_factory.mktemp("here"))


@pytest.fixture(scope="module")
def few_losses_here(books: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return trained_here(books, tmp_path_factory.mktemp("few"), f"until.steps={FEW}")


@pytest.mark.parametrize("job", KINDS)
def test_two_nodes_of_two_workers_train_as_one_machine_does(
    job: str, books: Path, few_losses_here: list[float], stoker: Stoker, tmp_path: Path
) -> None:
    overrides = [f"data.path={books}", *TRAINING, f"until.steps={FEW}", "on.nodes=2", "on.workers=2", f"on.job={job}"]
    run = launched(stoker, *overrides)
    now = wait_for(stoker, run, "done")
    assert now["step"] == FEW
    assert metrics(stoker, run, tmp_path) == pytest.approx(few_losses_here, abs=1e-5)
    assert "[3]" in stoker("logs", run.name, "--all")
    assert "4 workers" in stoker("events", run.name)


@pytest.mark.parametrize("job", ["job", *(pytest.param(name, marks=pytest.mark.soak) for name in ("jobset", "vcjob"))])
def test_a_pod_that_is_deleted_or_killed_is_replaced_and_nothing_is_lost(
    job: str, books: Path, losses_here: list[float], stoker: Stoker, namespace, tmp_path: Path
) -> None:
    run = launched(
        stoker, f"data.path={books}", *TRAINING, HOLD_OVERRIDE, "on.nodes=2", "on.workers=2", f"on.job={job}"
    )
    on_volume = on_the_volume(run)
    until(lambda: last_step(on_volume) == HOLDS[0], on_volume)
    now = wait_for(stoker, run, "running")
    namespace.kubectl("delete", "pod", now["pods"][1]["pod"], "--grace-period=0", "--force")
    release(on_volume, HOLDS[0])
    until(lambda: last_step(on_volume) == HOLDS[1], on_volume)  # it saved before it ended, and resumed
    now = wait_for(stoker, run, "running")
    kill(namespace.kubectl.json("get", "pod", now["pods"][0]["pod"]))
    release(on_volume, HOLDS[1])
    wait_for(stoker, run, "done")
    assert metrics(stoker, run, tmp_path) == losses_here  # bit for bit
    events = stoker("events", run.name)
    assert "has left" in events
    assert "resumed at step" in events
    assert "attempt 3" in events
    namespace.kubectl("delete", job_kind(job).KIND, run.name, "--wait=true", "--cascade=foreground")
    assert not namespace.kubectl("get", "pods", "-l", f"stoker.dev/run={run.name}", "-o", "name")
    assert all(f"[{rank}]" in stoker("logs", run.name, "--all") for rank in range(4))
    assert json.loads(stoker("status", run.name, "--json"))["step"] == STEPS


def test_a_script_runs_on_two_nodes(stoker: Stoker) -> None:
    run = launched(stoker, f"script={SCRIPT}", "args=[--steps, '20']", "name=mine", "on.nodes=2", "on.workers=1")
    wait_for(stoker, run, "done")
    assert "loss" in stoker("logs", run.name)


def trained_here(books: Path, runs: Path, *overrides: str) -> list[float]:
    settings = [f"data.path={books}", *TRAINING, *overrides, "name=here", "on.workers=4"]
    assert main(["train", *settings, "--runs", str(runs)]) == 0
    return losses(RunDir(runs / "here"))


def kill(pod: dict) -> None:
    """Kill every process of the pod at once, as when its node loses power."""
    uid = pod["metadata"]["uid"]
    for group in Path("/proc").glob("[0-9]*/cgroup"):
        with contextlib.suppress(OSError):
            if uid in group.read_text().replace("_", "-"):
                os.kill(int(group.parent.name), signal.SIGKILL)


def launched(stoker: Stoker, *words: str) -> RunDir:
    return RunDir(Path(json.loads(stoker("launch", *words, "--json"))["folder"]))


def wait_for(stoker: Stoker, run: RunDir, state: str) -> dict:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        now = json.loads(stoker("status", run.name, "--json"))
        if now["state"] == state:
            return now
        assert time.monotonic() < deadline, now
        assert now["state"] in ("waiting", "running", "restarting"), now
        time.sleep(0.5)


def metrics(stoker: Stoker, run: RunDir, folder: Path) -> list[float]:
    """The losses of its steps, from the volume."""
    (folder / "copy").mkdir(exist_ok=True)
    stoker("cp", f"{run.name}:metrics.jsonl", str(folder / "copy"))
    return losses(RunDir(folder / "copy"))
