"""TorchX's command line: the job of a dry run, and mistakes. Tests with a cluster are in tests/lab."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from stoker.backends.kubernetes.plan import NO_CLUSTER, plan
from stoker.backends.kubernetes.torchx import app_def, job
from stoker.cli.torchx import app
from stoker.spec.errors import UserError
from stoker.spec.load import load

ON = ("on.image=team/image:1", "on.registry=team/runs", "on.volume=data", "on.nodes=2", "on.workers=2")
RUN = [sys.executable, "-m", "torchx.cli.main", "run", "--dryrun", "-s", "kubernetes", "--workspace", ""]
FILES = ["stoker.cli.torchx", str(Path(__file__).parents[2] / "src" / "stoker" / "cli" / "torchx.py")]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text("{name: tale, script: train.py, args: [--lr, $(LR)]}")
    (tmp_path / "train.py").touch()
    return tmp_path


def torchx(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*RUN, *arguments], capture_output=True, text=True)


@pytest.mark.parametrize("file", FILES)
def test_a_dry_run_shows_a_volcano_job_and_creates_nothing(file: str, folder: Path) -> None:
    done = torchx("-cfg", "queue=test,namespace=training,service_account=me", f"{file}:app", "--run", "run.yaml", *ON)
    assert done.returncode == 0, done.stderr
    volcano_job = yaml.safe_load(done.stdout.partition("=== SCHEDULER REQUEST ===")[2])
    name = volcano_job["metadata"]["name"]
    assert (volcano_job["metadata"]["namespace"], volcano_job["metadata"]["labels"]["stoker.dev/run"]) == (
        "training",
        name,
    )
    assert (volcano_job["spec"]["queue"], volcano_job["spec"]["minAvailable"]) == ("test", 2)
    assert [task["name"] for task in volcano_job["spec"]["tasks"]] == [
        "node-0",
        "node-1",
    ]  # `torchx status` needs these names
    for index, task in enumerate(volcano_job["spec"]["tasks"]):
        pod = task["template"]
        [container] = pod["spec"]["containers"]
        env = {variable["name"]: variable.get("value") for variable in container["env"]}
        assert env["STOKER_NODE"] == pod["metadata"]["labels"]["torchx.pytorch.org/replica-id"] == str(index)
        assert env["TORCHX_JOB_ID"] == f"kubernetes://torchx/{name}"
        assert pod["metadata"]["labels"]["stoker.dev/run"] == name
        assert pod["spec"]["serviceAccountName"] == "me"
        assert container["command"][-2:] == ["--lr", "$$(LR)"]
    assert sorted(path.name for path in folder.iterdir()) == ["run.yaml", "train.py"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["-cfg", "queue=test", "c:app", "--run", "run.yaml", "on.namespace=a"], "TorchX creates the job in default"),
        (["-cfg", "queue=test", "c:app", "--run", "run.yaml", "on.context=a"], "current context of the kubeconfig"),
        (["-cfg", "queue=test", "c:app", "--run", "none.yaml"], "none.yaml"),
        (["-cfg", "queue=test", "c:app", "--run", "run.yaml", "on.queue_make={weight: 1}"], "also needs a Queue"),
        (["-s", "local_cwd", "c:app", "--run", "run.yaml"], "scheduler is local_cwd. Use -s kubernetes"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], problem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scheduler = [] if "-s" in arguments else ["-s", "kubernetes"]
    monkeypatch.setattr(sys, "argv", ["/usr/bin/torchx", "run", "--dryrun", *scheduler, *arguments])
    at = arguments.index("--run") + 1
    with pytest.raises(SystemExit) as end:
        app(*ON, *arguments[at + 1 :], run=arguments[at])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1


def test_python_callers_get_an_exception() -> None:
    with pytest.raises(UserError, match="there is no"):
        app(run="none.yaml")


def test_another_scheduler_is_refused(folder: Path) -> None:
    spec = load(folder / "run.yaml", ["on.kind=kubernetes", "on.job=vcjob", *ON]).spec
    [role] = app_def(spec, plan(spec, NO_CLUSTER, folder / "tale")).roles
    assert (role.num_replicas, role.image, role.mounts[0].src) == (2, "team/image:1", "data")
    with pytest.raises(UserError, match="scheduler slurm cannot run a Stoker run"):
        role.pre_proc("slurm", None)


def test_optional_nodes_are_not_in_min_available(folder: Path) -> None:
    spec = load(folder / "run.yaml", ["on.kind=kubernetes", "on.job=vcjob", *ON, "on.nodes=1..3"]).spec
    [role] = app_def(spec, plan(spec, NO_CLUSTER, folder / "tale")).roles
    assert (role.min_replicas, role.num_replicas) == (1, 3)
    metadata = type("Metadata", (), {"labels": {}})
    container = type("Container", (), {"env": []})
    pod = type(
        "Pod",
        (),
        {"metadata": metadata, "spec": type("Spec", (), {"containers": [container], "service_account_name": None})},
    )
    torchx_job = {
        "metadata": {"name": "tale-x"},
        "spec": {
            "queue": "q",
            "priorityClassName": "high",
            "tasks": [{"name": f"node-{index}", "template": pod, "minAvailable": int(index < 1)} for index in range(3)],
        },
    }
    converted = job(torchx_job, role.job)
    assert [task["minAvailable"] for task in converted["spec"]["tasks"]] == [1, 0, 0]
    assert (converted["spec"]["minAvailable"], converted["spec"]["priorityClassName"]) == (1, "high")
