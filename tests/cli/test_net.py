"""What `stoker net` refuses without a cluster. Its measurements are tested in tests/net and tests/lab."""

from pathlib import Path

import pytest

from stoker.cli.main import main
from stoker.rundir import RunDir
from stoker.spec.load import load

RUN_FILE = "name: tale\nscript: train.py\non: {workers: 2}\n"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "net needs a run"),
        (["--nodes", "0"], "--nodes is 0"),
        (["--nodes", "2"], "on.image is missing"),
        (["--nodes", "2", "on.imag=x"], "on.image"),
        (["tale.yaml"], "on.kind is local, and this needs a cluster"),
        (["here"], "run 'here' runs on this machine, and has no network between nodes"),
        (["here", "on.nodes=2"], "on.nodes=2: an existing run cannot be changed here"),
        (["nowhere"], "nowhere"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tale.yaml").write_text(RUN_FILE)
    RunDir(tmp_path / "runs" / "here").create(load(tmp_path / "tale.yaml", []).spec, None)
    assert main(["net", *arguments]) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1
