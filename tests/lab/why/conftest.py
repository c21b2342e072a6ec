"""The `stoker` that is typed, and a bed with all that the faults need."""

import os
import shlex
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.kubectl import Kubectl
from stoker.cli.main import main
from tests.lab.sharing import fake_nodes
from tests.lab.why.bed import Bed
from tests.lab.why.registry import locked_registry, put_strange_image
from tests.lab.why.troubles import FREE, HELD, claim, dumb_node, queue, release


@pytest.fixture
def stoker(
    lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    monkeypatch.setenv("KUBECONFIG", str(lab.kubeconfig))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{lab.kubectl.program.parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('hello')\n")
    program = tmp_path / "bin" / "stoker"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m stoker "$@"\n')
    program.chmod(0o755)

    def call(*words: str) -> str:
        code = main(list(words))
        said = capsys.readouterr()
        assert code == 0, said.err
        return said.out

    return call


@pytest.fixture
def bed(lab: Any, namespace: Any, tmp_path: Path, stoker: Callable[..., str]) -> Iterator[Bed]:  # noqa: ARG001
    """With claims that cannot be bound, an image of another platform, a registry that is locked, and fake nodes."""
    namespace.kubectl.apply(claim("classless", storageClassName="nonesuch"), claim("bare", storageClassName=""))
    put_strange_image()
    named = f"why{uuid.uuid4().hex[:6]}"
    with fake_nodes(3, named=named):
        try:
            lab.kubectl("cordon", f"{named}-00001")
            lab.kubectl.apply(queue(named), dumb_node(f"{named}-silent"))
            with locked_registry() as locked:
                yield Bed(lab, namespace, tmp_path, locked, named)
        finally:
            tidy(lab.kubectl, namespace, named)


def tidy(kubectl: Kubectl, namespace: Any, named: str) -> None:
    kubectl("label", "nodes", "--all", "team-")
    kubectl("delete", "validatingwebhookconfiguration", f"{namespace.name}-webhook", "--ignore-not-found")
    for pod in namespace.kubectl.json("get", "pods")["items"]:
        if HELD in pod["metadata"].get("finalizers", []):
            namespace.kubectl("patch", "pod", pod["metadata"]["name"], "--type=merge", "-p", FREE, check=False)
    for trouble in ("quota", "webhook", "ending"):
        release(kubectl, f"{namespace.name}-{trouble}")
    kubectl("delete", "queue", named, "--ignore-not-found", check=False)
    kubectl("delete", "node", f"{named}-silent", "--ignore-not-found")
