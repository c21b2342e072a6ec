"""What `stoker scale` refuses. Tests with a cluster are in tests/lab."""

from pathlib import Path

import pytest

from stoker.api.run import open_run
from stoker.backends.kubernetes.place import ClusterPlace
from stoker.cli.main import main
from stoker.rundir import RunDir
from stoker.spec.errors import UserError
from stoker.spec.load import load


@pytest.fixture
def local_run(tmp_path: Path) -> RunDir:
    """A run on this machine."""
    run = RunDir(tmp_path / "runs" / "tale")
    run.create(load(None, ["data=x", "until.steps=1"]).spec, None)
    return run


@pytest.fixture
def cluster_run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "runs" / "tale-abcd")
    run.create(load(None, ["data=x", "until.steps=1", "on.kind=kubernetes", "on.image=i", "on.volume=v"]).spec, None)
    where = {"context": None, "namespace": "team", "volume": "v", "image": "i"}
    ClusterPlace(kind="kubernetes", job="job", run=run.name, **where).write(run)
    return run


def scale(run: RunDir, nodes: str) -> int:
    return main(["scale", run.name, nodes, "--runs", str(run.path.parent)])


def test_a_local_run_is_refused_with_the_command_to_use(local_run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert scale(local_run, "2") == 2
    message = capsys.readouterr().err
    assert "runs on this machine" in message
    assert f"stoker launch {local_run.path} on.workers=2" in message
    with pytest.raises(UserError, match="runs on this machine"):
        open_run(local_run.path).scale(2)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ("4..1", "4..1 is not a range. Write 1..4"),
        ("0", "'0' is not a number of nodes. Write a number such as 2"),
        ("many", "'many' is not a number of nodes"),
        ("2.5", "'2.5' is not a number of nodes"),
    ],
)
def test_an_invalid_number_of_nodes_is_refused_without_a_request(
    cluster_run: RunDir, nodes: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (cluster_run.path / "spec.yaml").read_bytes()
    assert scale(cluster_run, nodes) == 2
    assert message in capsys.readouterr().err
    assert (cluster_run.path / "spec.yaml").read_bytes() == before


def test_an_unknown_run_is_named(local_run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", "tael", "2", "--runs", str(local_run.path.parent)]) == 2
    assert "there is no run 'tael'" in capsys.readouterr().err
