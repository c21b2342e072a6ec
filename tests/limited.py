"""Python processes in which something is missing: code of our own runs before anything else in each of them."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# Verbs one after another in one process: starting each anew would take longer than what it does.
VERBS = """
import io, json, sys, traceback
from contextlib import redirect_stderr, redirect_stdout
from stoker.cli.main import main

done = []
for words in json.loads(sys.argv[1]):
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        try:
            code = main(words)
        except SystemExit as e:
            code = e.code
        except Exception:
            code = 1
            traceback.print_exc()
    done.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(done))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    code: int
    out: str
    err: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Limited:
    """A folder whose sitecustomize.py every Python process imports first, and so do the processes that it starts."""

    folder: Path

    @classmethod
    def by(cls, code: str, folder: Path) -> "Limited":
        (folder / "sitecustomize.py").write_text(code)
        return cls(folder=folder)

    def environment(self) -> dict[str, str]:
        return os.environ | {"PYTHONPATH": str(self.folder)}

    def python(self, code: str, *words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
        argv = [sys.executable, "-c", code, *words]
        return subprocess.run(argv, cwd=cwd, env=self.environment(), capture_output=True, text=True, timeout=600)

    def verbs(self, *commands: Sequence[str], cwd: Path) -> list[Ended]:
        """`stoker …` for each of the commands."""
        done = self.python(VERBS, json.dumps([list(words) for words in commands]), cwd=cwd)
        assert done.returncode == 0, done.stdout + done.stderr
        return [Ended(code=code, out=out, err=err) for code, out, err in json.loads(done.stdout.splitlines()[-1])]
