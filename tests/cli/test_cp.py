"""Mistakes with cp and shell that are detected without a cluster."""

from pathlib import Path
from typing import Any

import pytest

from stoker.rundir import RunDir
from stoker.spec.run import ScriptSpec


@pytest.fixture
def workdir(stoker: Any) -> Path:
    RunDir(stoker.folder / "runs/demo").create(ScriptSpec(name="demo", script="train.py"), None)
    (stoker.folder / "a.txt").write_text("a")
    folder: Path = stoker.folder
    return folder


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["a.txt"], "cp needs a source and a target"),
        (["a.txt", "b.txt"], "cp cannot copy from a.txt to b.txt"),
        (["none.txt", "demo:/data"], "there is no none.txt"),
        (["a.txt", "demo:/data"], "run 'demo' is on this machine"),
        (["a.txt", "dome:/data"], "Did you mean demo?"),
        (["runs/demo:/data", "a.txt"], "run 'demo' is on this machine"),
        (["a.txt", "demo:/data", "--extract"], "--extract, --anonymous and --region are for s3://"),
        (["s3://b/k", "a.txt"], "cp cannot copy from s3://b/k to a.txt"),
        (["demo:/a", "demo:/b"], "cp cannot copy from"),
        (["", "demo:/data"], "a file or folder has an empty name"),
        (["demo:/data", ""], "a file or folder has an empty name"),
        (["~no-such-user/a.txt", "demo:/data"], "there is no ~no-such-user/a.txt"),
    ],
)
def test_mistakes_are_named(stoker: Any, workdir: Path, arguments: list[str], problem: str) -> None:
    assert workdir.is_dir()
    assert problem in stoker("cp", *arguments, code=2).stderr


def test_shell_for_a_local_run_suggests_cd(stoker: Any, workdir: Path) -> None:
    assert f"cd {workdir / 'runs/demo'}" in stoker("shell", "demo", "--", "ls", "-l", code=2).stderr
