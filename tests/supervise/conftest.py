"""A run of a script, not started."""

from pathlib import Path

import pytest

from stoker.rundir import RunDir
from stoker.spec.run import ScriptSpec


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "tale")
    run.create(ScriptSpec(name="tale", script="train.py"), None)
    return run
