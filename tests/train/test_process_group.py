"""A worker gets its rank from the environment."""

from pathlib import Path

import pytest

from stoker.rundir import RunDir
from stoker.train.__main__ import main

VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "STOKER_ATTEMPT")


@pytest.mark.parametrize("missing", VARIABLES)
def test_a_worker_that_no_supervisor_has_started_says_how_to_start_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "0")
    monkeypatch.delenv(missing)
    assert main(RunDir(tmp_path)) == 2
    assert capsys.readouterr().err == (
        f"a worker needs {missing} in its environment. Start runs with: stoker train RUN.yaml\n"
    )
