"""What is said of a run whose records are not here."""

from pathlib import Path

import pytest

from stoker.rundir import PlaceRef, RunDir
from stoker.rundir.elsewhere import cp_command, refuse_elsewhere
from stoker.spec.errors import UserError

PLACE = PlaceRef(kind="kubernetes", context=None, namespace="team", job="job", run="demo", volume="vol", image="x")


def test_a_run_that_lives_here_is_not_refused(tmp_path: Path) -> None:
    refuse_elsewhere(RunDir(tmp_path))


def test_the_command_finds_a_run_that_is_kept_in_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunDir(tmp_path / "my runs" / "demo")
    run.path.mkdir(parents=True)
    run.write_place(PLACE)
    with pytest.raises(UserError, match="on volume claim 'vol' in namespace team") as told:
        refuse_elsewhere(run)
    assert f"stoker cp --runs '{tmp_path}/my runs' demo: ./demo-copy" in told.value.remedy
    assert cp_command(RunDir(tmp_path / "runs" / "demo"), "here") == "stoker cp demo: here"
