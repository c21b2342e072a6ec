"""kubectl, as the tests and the lab itself call it."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.places import KUBECONFIG


@dataclass(frozen=True, kw_only=True, slots=True)
class Kubectl:
    program: Path
    namespace: str = ""

    def __call__(self, *words: str, input: str | None = None, check: bool = True) -> str:
        done = subprocess.run(self.argv(*words), input=input, capture_output=True, text=True)
        if check and done.returncode:
            raise RuntimeError(f"kubectl {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def argv(self, *words: str) -> list[str]:
        where = [f"--namespace={self.namespace}"] if self.namespace else []
        return [str(self.program), f"--kubeconfig={KUBECONFIG}", *where, *words]

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--output=json"))

    def apply(self, *objects: dict[str, Any], known: bool = False) -> None:
        """`known`: they are as they should be, and the server need not describe all its kinds to have them checked."""
        everything = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        check = ["--validate=false"] if known else []
        self("apply", "--server-side", "--filename=-", *check, input=json.dumps(everything))
