"""Tracebacks of real interpreters."""

import subprocess
import sys
from pathlib import Path

import pytest

from stoker.supervise.output.import_errors import find_import_error


def output_of(script: Path, text: str) -> str:
    script.write_text(text)
    done = subprocess.run(
        [sys.executable, str(script)], cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 1
    return done.stdout


@pytest.mark.parametrize(
    "text",
    [
        "import nothere",
        "print('some noise')\nfrom nothere import (\n  a,\n  b,\n)",
        "import helper",
        "try:\n  import gone\nexcept ImportError:\n  import nothere",
    ],
)
def test_a_missing_module_is_named_with_the_script_and_a_remedy(tmp_path: Path, text: str) -> None:
    script = tmp_path / "train.py"
    (tmp_path / "helper.py").write_text("import nothere.deep")
    error = find_import_error(str(script), output_of(script, text))
    assert error is not None
    assert error.problem.startswith(f"script {script} needs the module nothere")
    assert "pip install nothere;" in error.remedy
    marked = "".join(f"[rank3]: {line}" for line in output_of(script, text).splitlines(keepends=True))
    assert find_import_error(str(script), marked) == error, "torch adds this prefix to each line"


def test_a_name_that_is_missing_in_a_module_is_reported(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    error = find_import_error(str(script), output_of(script, "from json import nothing"))
    assert error is not None
    assert "cannot import name 'nothing' from 'json'" in error.problem
    assert f"python {script}" in error.remedy


def test_a_module_that_is_not_valid_python_is_reported_with_its_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    (tmp_path / "helper.py").write_text("x = 1\ndef (")
    error = find_import_error(str(script), output_of(script, "import helper"))
    assert error is not None
    assert f"SyntaxError in {tmp_path / 'helper.py'}, line 2" in error.problem


def test_a_script_that_became_invalid_after_the_check_is_reported(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    error = find_import_error(str(script), output_of(script, "def ("))
    assert error is not None
    assert f"SyntaxError in {script}, line 1" in error.problem


@pytest.mark.parametrize(
    "text",
    [
        "def main():\n  import nothere\nmain()",
        "raise ImportError('of its own making')",
        "print('ModuleNotFoundError: No module named x')\n1/0",
        "raise SystemExit(1)",
    ],
)
def test_any_other_crash_may_succeed_the_next_time(tmp_path: Path, text: str) -> None:
    script = tmp_path / "train.py"
    assert find_import_error(str(script), output_of(script, text)) is None
