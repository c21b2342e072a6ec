"""`stoker scale`, where there is nothing to scale. What happens in a cluster is in tests/lab."""

from pathlib import Path

import pytest

from stoker.api.run import open_run
from stoker.backends.kubernetes.place import ClusterPlace
from stoker.cli.main import main
from stoker.rundir import RunDir
from stoker.spec.errors import UserError
from stoker.spec.load import load


@pytest.fixture
def here(tmp_path: Path) -> RunDir:
    """One that runs on this machine."""
    run = RunDir(tmp_path / "runs" / "tale")
    run.create(load(None, ["data=x", "until.steps=1"]).spec, None)
    return run


@pytest.fixture
def there(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "runs" / "tale-abcd")
    run.create(load(None, ["data=x", "until.steps=1", "on.kind=kubernetes", "on.image=i", "on.volume=v"]).spec, None)
    where = {"context": None, "namespace": "team", "volume": "v", "image": "i"}
    ClusterPlace(kind="kubernetes", job="job", run=run.name, **where).write(run)
    return run


def scale(run: RunDir, nodes: str) -> int:
    return main(["scale", run.name, nodes, "--runs", str(run.path.parent)])


def test_a_run_on_this_machine_says_what_to_type_instead(here: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert scale(here, "2") == 2
    said = capsys.readouterr().err
    assert "runs on this machine" in said
    assert f"stoker launch {here.path} on.workers=2" in said
    with pytest.raises(UserError, match="runs on this machine"):
        open_run(here.path).scale(2)


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ("4..1", "4..1 is not a range. Write 1..4"),
        ("0", "'0' is not a number of nodes. Write a number such as 2"),
        ("many", "'many' is not a number of nodes"),
        ("2.5", "'2.5' is not a number of nodes"),
    ],
)
def test_what_is_no_number_of_nodes_is_refused_before_anybody_is_asked(
    there: RunDir, nodes: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (there.path / "spec.yaml").read_bytes()
    assert scale(there, nodes) == 2
    assert said in capsys.readouterr().err
    assert (there.path / "spec.yaml").read_bytes() == before


def test_a_run_that_is_not_there_is_named(here: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", "tael", "2", "--runs", str(here.path.parent)]) == 2
    assert "there is no run 'tael'" in capsys.readouterr().err
