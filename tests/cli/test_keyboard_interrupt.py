"""Ctrl-C while a command imports a backend."""

import subprocess
import sys
from pathlib import Path

COMMAND = """\
import sys
from stoker.backends import BACKENDS
from stoker.cli.main import main
BACKENDS["kubernetes"] = "interrupted_backend"
sys.exit(main(sys.argv[1:]))
"""
INTERRUPTED_BACKEND = 'exec("raise KeyboardInterrupt")'  # a dataclass executes text in the same way


def test_a_command_that_is_interrupted_while_it_imports_a_backend_exits_with_130(tmp_path: Path) -> None:
    (tmp_path / "command.py").write_text(COMMAND)
    (tmp_path / "interrupted_backend.py").write_text(INTERRUPTED_BACKEND)
    overrides = ["script=/app/train.py", "on.kind=kubernetes", "on.image=x", "on.volume=v"]
    argv = [sys.executable, "-m", "command", "launch", *overrides]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
