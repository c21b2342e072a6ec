"""Mistakes with cp and shell that need no cluster to be found."""

from pathlib import Path
from typing import Any

import pytest

from stoker.rundir import RunDir
from stoker.spec.run import ScriptSpec


@pytest.fixture
def here(stoker: Any) -> Path:
    RunDir(stoker.folder / "runs/demo").create(ScriptSpec(name="demo", script="train.py"), None)
    (stoker.folder / "a.txt").write_text("a")
    folder: Path = stoker.folder
    return folder


@pytest.mark.parametrize(
    ("words", "says"),
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
    ],
)
def test_cp_says_what_is_wrong(stoker: Any, here: Path, words: list[str], says: str) -> None:
    assert here.is_dir()
    assert says in stoker("cp", *words, code=2).stderr


def test_a_shell_of_a_local_run_is_a_cd(stoker: Any, here: Path) -> None:
    assert f"cd {here / 'runs/demo'}" in stoker("shell", "demo", "--", "ls", "-l", code=2).stderr
