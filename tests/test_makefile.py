"""`make test` sets up the machine and builds the lab beside the first tests; `make quick` and `bench` need no lab."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Records its arguments. The first tests and the build of the lab each wait until the other has started.
PYTHON = """#!/bin/sh
echo "$*" >> calls
wait_for() { n=0; until test -e "$1"; do n=$((n + 1)); test $n -lt 3000 || exit 9; sleep 0.02; done; }
case "$*" in
  "-m lab build") touch building; wait_for testing; echo "output of the build"; exit "${BUILD:-0}" ;;
  *"--ignore tests/lab") touch testing; wait_for building; exit "${TESTS:-0}" ;;
esac
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout with a complete virtual environment whose Python only records its calls."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ["python", "ruff", "mypy"]:
        (programs / name).write_text(PYTHON if name == "python" else "#!/bin/sh\n")
        (programs / name).chmod(0o755)
    (tmp_path / ".venv" / "dev.stamp").touch()
    return tmp_path


def make(folder: Path, target: str = "test", **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(["make", target], cwd=folder, env=clean | env, capture_output=True, text=True)


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


def test_packages_come_first_and_the_lab_is_built_beside_the_first_tests(folder: Path) -> None:
    done = make(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    first, *beside, last = calls(folder)
    pytest_call = "-m pytest -n 2 --dist worksteal -m not soak"
    assert first == "-m lab packages"
    assert sorted(beside) == ["-m lab build", "-m lab gcs", f"{pytest_call} --ignore tests/lab"]
    assert last == f"{pytest_call} tests/lab"
    assert "output of the build" in done.stdout


def test_a_lab_that_does_not_build_fails_the_tests(folder: Path) -> None:
    done = make(folder, BUILD="1")
    assert done.returncode == 2
    assert "output of the build" in done.stdout
    assert not [call for call in calls(folder) if call.endswith("soak tests/lab")]


def test_no_lab_test_runs_when_a_first_test_has_failed(folder: Path) -> None:
    done = make(folder, TESTS="1")
    assert done.returncode == 2
    assert not [call for call in calls(folder) if call.endswith("soak tests/lab")]


def test_quick_runs_folders_that_exist_without_the_lab_and_without_slow_tests(folder: Path) -> None:
    done = make(folder, "quick")
    assert done.returncode == 0, done.stdout + done.stderr
    (call,) = calls(folder)
    prefix = "-m pytest -n 2 --dist worksteal -m not soak and not slow "
    assert call.startswith(prefix)
    paths = call.removeprefix(prefix).split()
    assert {"tests/spec", "tests/cli", "tests/test_architecture.py"} <= set(paths)
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert not {"tests/lab", "tests/train", "tests/models", "tests/inference"} & set(paths)


def test_bench_starts_no_lab(folder: Path) -> None:
    done = make(folder, "bench")
    assert done.returncode == 0, done.stdout + done.stderr
    assert calls(folder) == ["-m bench"]
