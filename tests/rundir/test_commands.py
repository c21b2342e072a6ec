"""What is said of a run whose records are not here."""

from pathlib import Path

import pytest

from stoker.backends.kubernetes.place import ClusterPlace
from stoker.rundir import RunDir
from stoker.rundir.commands import cp_command, require_local
from stoker.spec.errors import UserError

PLACE = ClusterPlace(kind="kubernetes", context=None, namespace="team", job="job", run="demo", volume="vol", image="x")


def test_a_run_that_lives_here_is_not_refused(tmp_path: Path) -> None:
    require_local(RunDir(tmp_path))


def test_the_command_finds_a_run_that_is_kept_in_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunDir(tmp_path / "my runs" / "demo")
    run.path.mkdir(parents=True)
    PLACE.write(run)
    with pytest.raises(UserError, match="on volume claim 'vol' in namespace team") as told:
        require_local(run)
    assert f"stoker cp --runs '{tmp_path}/my runs' demo: ./demo-copy" in told.value.remedy
    assert cp_command(RunDir(tmp_path / "runs" / "demo"), "here") == "stoker cp demo: here"
