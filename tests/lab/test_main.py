"""`python -m lab` and the test session without permissions, and with closed pipes."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
NOBODY = 65534


@pytest.fixture
def root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can change its user")


def python(code: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", code]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("verb", ["down", "status", "env", "kwok 3"])
def test_only_root_can_use_the_lab(verb: str) -> None:
    done = python(
        f"import os, sys; from lab.__main__ import main; os.seteuid({NOBODY}); sys.exit(main({verb.split()}))"
    )
    assert done.returncode == 2
    assert done.stderr == "lab: the lab needs root. Run this as root\n"


@pytest.mark.usefixtures("root")
def test_the_session_of_another_user_does_not_stop_the_lab_of_root(tmp_path: Path) -> None:
    patch = f"session.STATE = Path('{tmp_path}'); session.USERS = Path('{tmp_path}/users')"
    done = python(f"import os; from pathlib import Path; from lab import session; {patch}; "
                  f"os.seteuid({NOBODY}); session.leave()")  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("root")
def test_a_session_that_ends_does_not_stop_a_lab_that_make_lab_is_starting(tmp_path: Path) -> None:
    state, lock = tmp_path / "state", tmp_path / "lock"
    state.mkdir()
    patch = f"session.STATE = Path('{state}'); session.USERS = Path('{tmp_path}/users'); cluster.LOCK = Path('{lock}')"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as by `make lab`, from before it builds until the lab is ready
        done = python(f"from pathlib import Path; from lab import cluster, session; {patch}; session.leave()")
    assert done.returncode == 0, done.stderr
    assert state.exists()


@pytest.mark.usefixtures("lab")
def test_a_pipe_that_is_closed_early_is_no_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "lab", "env"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


def test_work_continues_when_stderr_is_closed(tmp_path: Path) -> None:
    code = f"from lab.progress import log; log('one'); log('two'); open('{tmp_path}/done', 'w')"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        process.stderr.close()
    assert process.returncode == 0
    assert (tmp_path / "done").exists()


def test_with_ci_a_skipped_lab_test_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(
        "import pytest\n"
        "def test_skips(): pytest.skip('no root')\n"
        "@pytest.mark.xfail\n"
        "def test_fails_as_expected(): assert False\n"
    )
    (tmp_path / "test_two.py").write_text("import pytest\npytest.skip('no python', allow_module_level=True)\n")
    skipped = pytest_in(tmp_path, CI="")
    assert "2 skipped, 1 xfailed" in skipped.stdout
    failed = pytest_in(tmp_path, CI="true")
    assert "1 failed, 1 xfailed, 1 error" in failed.stdout
    for reason in ["no root", "no python"]:
        assert f"with CI=true no lab test may be skipped: Skipped: {reason}" in failed.stdout


def pytest_in(folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the tests in a folder with the lab's conftest."""
    folders = [str(ROOT), str(Path(__file__).parent), os.environ.get("PYTHONPATH")]
    path = {"PYTHONPATH": os.pathsep.join(filter(None, folders))}
    argv = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "-c", os.devnull]
    argv += ["--continue-on-collection-errors", f"--rootdir={folder}", str(folder)]
    return subprocess.run(argv, cwd=folder, env=os.environ | path | env, capture_output=True, text=True)
