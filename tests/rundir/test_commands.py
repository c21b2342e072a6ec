"""The commands that messages name for a run, and the error for a run whose records are elsewhere."""

from pathlib import Path

import pytest

from stoker.backends.kubernetes.place import ClusterPlace
from stoker.rundir import RunDir
from stoker.rundir.commands import command_name, cp_command, require_local
from stoker.spec.errors import UserError

PLACE = ClusterPlace(kind="kubernetes", context=None, namespace="team", job="job", run="demo", volume="vol", image="x")


def test_a_run_on_this_machine_is_not_refused(tmp_path: Path) -> None:
    require_local(RunDir(tmp_path))


def test_the_command_names_the_folder_of_a_run_that_is_not_in_the_default_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunDir(tmp_path / "my runs" / "demo")
    run.path.mkdir(parents=True)
    PLACE.write(run)
    with pytest.raises(UserError, match="on volume claim 'vol' in namespace team") as refused:
        require_local(run)
    assert f"stoker cp --runs '{tmp_path}/my runs' demo: ./demo-copy" in refused.value.remedy
    assert cp_command(RunDir(tmp_path / "runs" / "demo"), "here") == "stoker cp demo: here"


def test_names_in_commands_are_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunDir(tmp_path / "runs" / "my run;")
    assert command_name(run) == "'my run;'"
    assert cp_command(run, "here") == "stoker cp 'my run;:' here"


def test_the_home_of_an_unknown_user_is_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_RUNS", "~no-such-user/runs")
    assert command_name(RunDir(tmp_path / "demo")) == str(tmp_path / "demo")
