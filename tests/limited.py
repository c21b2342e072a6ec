"""Python processes in which something is missing: each runs a sitecustomize.py that removes it."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# Several verbs in one process: starting a process takes longer than most verbs.
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
    """A folder whose sitecustomize.py a Python process imports first, and the processes that it starts do too."""

    folder: Path

    @classmethod
    def by(cls, code: str, folder: Path) -> "Limited":
        (folder / "sitecustomize.py").write_text(code)
        return cls(folder=folder)

    def environment(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, [str(self.folder), os.environ.get("PYTHONPATH")]))
        return os.environ | {"PYTHONPATH": path}

    def python(self, code: str, *words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
        argv = [sys.executable, "-c", code, *words]
        return subprocess.run(argv, cwd=cwd, env=self.environment(), capture_output=True, text=True, timeout=600)

    def verbs(self, *commands: Sequence[str], cwd: Path) -> list[Ended]:
        """Run `stoker …` with the arguments of each command."""
        done = self.python(VERBS, json.dumps([list(words) for words in commands]), cwd=cwd)
        assert done.returncode == 0, done.stdout + done.stderr
        return [Ended(code=code, out=out, err=err) for code, out, err in json.loads(done.stdout.splitlines()[-1])]
