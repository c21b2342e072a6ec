"""Verbs for runs in a cluster that cannot be reached. Tests with a cluster are in tests/lab."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from stoker.api.run import open_run
from stoker.backends.kubernetes.place import ClusterPlace
from stoker.cli.main import main
from stoker.rundir import RunDir
from stoker.spec.errors import UserError
from stoker.spec.load import load
from tests.ports import free_port

ON = ("on.kind=kubernetes", "on.image=example/image:1", "on.volume=training", "on.nodes=2", "on.workers=2")


@pytest.fixture
def out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kubeconfig whose server does not listen."""
    values = {
        "current-context": "lab",
        "clusters": [{"name": "c", "cluster": {"server": f"https://127.0.0.1:{free_port('127.0.0.1')}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u"}}],
    }
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(values))
    monkeypatch.setenv("KUBECONFIG", str(file))
    monkeypatch.chdir(tmp_path)
    return file


@pytest.fixture
def run(tmp_path: Path, out_of_reach: Path) -> RunDir:  # noqa: ARG001
    """A run that was launched in that cluster."""
    cluster_run = RunDir(tmp_path / "runs" / "demo-abcd")
    cluster_run.create(load(None, ["data=x", "until.steps=1", *ON]).spec, None)
    ClusterPlace(
        kind="kubernetes",
        context="lab",
        namespace="default",
        job="job",
        run="demo-abcd",
        volume="training",
        image="example/image:1",
    ).write(cluster_run)
    return cluster_run


def test_a_dry_run_prints_objects_that_kubectl_can_read(out_of_reach: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "data=x", "until.steps=1", "name=tale", *ON, "--dry-run"]) == 0
    captured = capsys.readouterr()
    service, job = yaml.safe_load_all(captured.out)
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    assert job["metadata"]["name"].startswith("tale-")
    assert "2 nodes × 2 workers" in captured.err
    assert "not checked: the API server" in captured.err
    assert out_of_reach.is_file()


@pytest.mark.parametrize("login", [{"token": "t"}, {"exec": {"apiVersion": "v1", "command": "no-such-login"}}])
def test_a_dry_run_without_a_cluster_takes_the_namespace_from_the_kubeconfig(
    out_of_reach: Path, capsys: pytest.CaptureFixture[str], login: dict[str, object]
) -> None:
    values = yaml.safe_load(out_of_reach.read_text())
    values["contexts"][0]["context"]["namespace"] = "team"
    values["users"][0]["user"] = login
    out_of_reach.write_text(yaml.safe_dump(values))
    assert main(["launch", "data=x", "until.steps=1", *ON, "--dry-run"]) == 0
    captured = capsys.readouterr()
    assert {item["metadata"]["namespace"] for item in yaml.safe_load_all(captured.out)} == {"team"}
    assert "not checked: " in captured.err


def test_a_dry_run_writes_files_and_creates_no_run(
    out_of_reach: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "hunter2")
    arguments = ["launch", "data=x", "until.steps=1", "secrets=[TOKEN]", *ON, "--dry-run", "-o", "objects"]
    assert main(arguments) == 0
    files = sorted(path.name for path in (tmp_path / "objects").iterdir())
    assert [name.split("-")[1] for name in files] == ["secret", "service", "job"]
    assert "hunter2" not in "".join(path.read_text() for path in (tmp_path / "objects").iterdir())
    assert not (tmp_path / "runs").exists()
    assert main([*arguments, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out.splitlines()[-1])["files"]) == 3
    assert out_of_reach.is_file()


def test_nothing_is_prepared_when_the_cluster_does_not_answer(
    out_of_reach: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", "data=x", "until.steps=1", *ON]) == 2
    assert "of context lab does not answer" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    assert out_of_reach.is_file()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["train", *ON], "on.kind is kubernetes, and stoker train trains here. Run: stoker launch"),
        (["launch", "on.kind=local", "-o", "x"], "-o writes Kubernetes objects"),
        (["launch", "on.kind=kubernetes", "--dry-run"], "on.image is missing"),
        (["launch", *ON, "script=train.py", "--dry-run"], "the pods would not have the script. Set on.registry="),
        (["launch", *ON, "on.context=lob"], "has no context 'lob'. Did you mean lab?"),
        (["launch", *ON, "secrets=[NOT_SET_ANYWHERE]"], "the variable NOT_SET_ANYWHERE, which is not set"),
        (["check", "cube"], "cannot check 'cube'"),
        (["check", "--context", "lab"], "Run: stoker check kube"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], problem: str, out_of_reach: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = arguments[0] == "check" or "script=train.py" in arguments
    command_line = arguments if bare else [*arguments, "data=x", "until.steps=1"]
    assert main(command_line) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert "Traceback" not in error
    assert out_of_reach.is_file()


def test_ps_shows_runs_whose_cluster_is_out_of_reach(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ps", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["state"]) == (run.name, "unknown")
    assert "does not answer" in row["reason"]


def test_the_end_of_a_run_is_remembered(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ps", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    last_view = row | {"state": "done", "reason": "all steps", "step": 7, "nodes": []}
    last_view |= {"val_loss": None, "checkpoint": 7, "restarts": 0}
    run.write_seen({"asked": 0, "view": last_view})
    assert main(["ps", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["state"], row["step"], row["reason"]) == ("done", 7, "all steps")


@pytest.mark.parametrize("arguments", [["status"], ["stop"], ["events"], ["top"], ["net"], ["scale", "3"]])
def test_other_verbs_report_that_the_cluster_does_not_answer(
    arguments: list[str], run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    verb, *options = arguments
    assert main([verb, run.name, *options]) == 2
    assert "of context lab does not answer" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["eval"], ["generate", "x"], ["export"], ["replay", "--step", "1"]])
def test_verbs_that_need_local_records_name_the_command_that_copies_them(
    arguments: list[str], run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    verb, *options = arguments
    assert main([verb, run.name, *options]) == 2
    error = capsys.readouterr().err
    assert "is not on this machine" in error
    assert "in runs/demo-abcd on volume claim 'training' in namespace default of context lab" in error
    assert "Copy it here with: stoker cp demo-abcd: ./demo-abcd-copy, then name the copy: ./demo-abcd-copy" in error


def test_a_run_in_a_cluster_must_be_copied_before_another_starts_from_it(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "data=x", "until.steps=1", f"init={run.name}"]) == 2
    assert "stoker cp demo-abcd: ./demo-abcd-copy" in capsys.readouterr().err


def test_a_run_in_a_cluster_is_not_restarted_locally(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    (run.path.parent / "here.yaml").write_text(f"name: {run.name}\ndata: x\nuntil: {{steps: 1}}\n")
    assert main(["train", "runs/here.yaml", "on.device=cpu"]) == 2
    assert "is not on this machine" in capsys.readouterr().err


def test_the_python_api_asks_the_cluster_for_its_runs(run: RunDir) -> None:
    cluster_run = open_run(run.path)
    for ask in (cluster_run.events, cluster_run.metrics, lambda: list(cluster_run.logs())):
        with pytest.raises(UserError, match="of context lab does not answer"):
            ask()


def test_check_kube_reports_problems(out_of_reach: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "kube"]) == 2
    assert "missing  cluster" in capsys.readouterr().out
    assert main(["check", "kube", "--json", "--context", "nowhere"]) == 2
    (finding,) = json.loads(capsys.readouterr().out)
    assert (finding["ok"], finding["needed"]) == (False, True)
    assert "has no context 'nowhere'" in finding["detail"]
    assert out_of_reach.is_file()


@pytest.mark.parametrize("arguments", [["--help"], ["ps"], ["check", "--help"], ["launch", "--help"]])
def test_verbs_without_a_cluster_load_no_http_client(arguments: list[str], tmp_path: Path) -> None:
    code = (
        "import sys\nfrom stoker.cli.main import main\n"
        f"try: main({arguments!r})\nexcept SystemExit: pass\n"
        "print([name for name in ('httpx2', 'httpx', 'anyio') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


def test_a_core_install_watches_runs_in_a_cluster() -> None:
    """Without numpy and the other packages that training needs."""
    code = (
        "import sys\nimport stoker.cli.scale, stoker.cli.status\n"
        "import stoker.backends.kubernetes.check, stoker.backends.kubernetes.manifest\n"
        "print([name for name in ('numpy', 'pyarrow', 'torch', 'tokenizers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_run_files_of_the_guide_are_valid(out_of_reach: Path, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "guides" / "kubernetes.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        (tmp_path / "run.yaml").write_text(block if "script:" in block else f"script: /app/train.py\n{block}")
        assert main(["launch", "run.yaml", "--dry-run"]) == 0
    assert out_of_reach.is_file()
