"""Runs kubectl for the tests and the lab."""

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

    def __call__(self, *args: str, input: str | None = None, check: bool = True) -> str:
        done = subprocess.run(self.argv(*args), input=input, capture_output=True, text=True)
        if check and done.returncode:
            raise RuntimeError(f"kubectl {' '.join(args)}: {done.stderr.strip()}")
        return done.stdout

    def argv(self, *args: str) -> list[str]:
        namespace = [f"--namespace={self.namespace}"] if self.namespace else []
        return [str(self.program), f"--kubeconfig={KUBECONFIG}", *namespace, *args]

    def json(self, *args: str) -> Any:
        return json.loads(self(*args, "--output=json"))

    def apply(self, *objects: dict[str, Any], known: bool = False) -> None:
        """Server-side apply. `known`: skip validation, which downloads the schemas of all kinds."""
        everything = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        check = ["--validate=false"] if known else []
        self("apply", "--server-side", "--filename=-", *check, input=json.dumps(everything))
