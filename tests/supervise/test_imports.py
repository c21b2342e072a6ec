"""Tracebacks of real interpreters."""

import subprocess
import sys
from pathlib import Path

import pytest

from stoker.supervise.imports import import_fault


def said(script: Path, text: str) -> str:
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
    fault = import_fault(str(script), said(script, text))
    assert fault is not None
    assert fault.problem.startswith(f"script {script} needs the module nothere")
    assert "pip install nothere;" in fault.remedy
    marked = "".join(f"[rank3]: {line}" for line in said(script, text).splitlines(keepends=True))
    assert str(import_fault(str(script), marked)) == str(fault), "torch marks what a rank says so"


def test_a_name_that_a_module_lacks_is_told(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    fault = import_fault(str(script), said(script, "from json import nothing"))
    assert fault is not None
    assert "cannot import name 'nothing' from 'json'" in fault.problem
    assert f"python {script}" in fault.remedy


def test_a_module_that_is_no_python_is_told_with_its_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    (tmp_path / "helper.py").write_text("x = 1\ndef (")
    fault = import_fault(str(script), said(script, "import helper"))
    assert fault is not None
    assert f"SyntaxError in {tmp_path / 'helper.py'}, line 2" in fault.problem


def test_a_script_that_was_spoilt_after_it_was_checked_is_told(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    fault = import_fault(str(script), said(script, "def ("))
    assert fault is not None
    assert f"SyntaxError in {script}, line 1" in fault.problem


@pytest.mark.parametrize(
    "text",
    [
        "def main():\n  import nothere\nmain()",
        "raise ImportError('of its own making')",
        "print('ModuleNotFoundError: No module named x')\n1/0",
        "raise SystemExit(1)",
    ],
)
def test_any_other_crash_may_go_better_the_next_time(tmp_path: Path, text: str) -> None:
    script = tmp_path / "train.py"
    assert import_fault(str(script), said(script, text)) is None
