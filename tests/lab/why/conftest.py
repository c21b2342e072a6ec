"""The `stoker` command that remedies use, and a cluster in which faults can be made."""

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
from tests.lab.why.faulty_runs import FaultInjector
from tests.lab.why.objects import FINALIZER, NO_FINALIZERS, claim, delete_namespace, node_without_kubelet, queue
from tests.lab.why.registry import locked_registry, push_foreign_image


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
        output = capsys.readouterr()
        assert code == 0, output.err
        return output.out

    return call


@pytest.fixture
def injector(
    lab: Any,
    namespace: Any,
    tmp_path: Path,
    stoker: Callable[..., str],  # noqa: ARG001
) -> Iterator[FaultInjector]:
    """With claims that cannot be bound, an image of another platform, a registry with a password, and fake nodes."""
    namespace.kubectl.apply(claim("classless", storageClassName="nonesuch"), claim("bare", storageClassName=""))
    push_foreign_image()
    named = f"why{uuid.uuid4().hex[:6]}"
    with fake_nodes(3, named=named):
        try:
            lab.kubectl("cordon", f"{named}-00001")
            lab.kubectl.apply(queue(named), node_without_kubelet(f"{named}-silent"))
            with locked_registry() as locked:
                yield FaultInjector(lab, namespace, tmp_path, locked, named)
        finally:
            clean_up(lab.kubectl, namespace, named)


def clean_up(kubectl: Kubectl, namespace: Any, named: str) -> None:
    kubectl("label", "nodes", "--all", "team-")
    kubectl("delete", "validatingwebhookconfiguration", f"{namespace.name}-webhook", "--ignore-not-found")
    for pod in namespace.kubectl.json("get", "pods")["items"]:
        if FINALIZER in pod["metadata"].get("finalizers", []):
            namespace.kubectl("patch", "pod", pod["metadata"]["name"], "--type=merge", "-p", NO_FINALIZERS, check=False)
    for problem in ("quota", "webhook", "ending"):
        delete_namespace(kubectl, f"{namespace.name}-{problem}")
    kubectl("delete", "queue", named, "--ignore-not-found", check=False)
    kubectl("delete", "node", f"{named}-silent", "--ignore-not-found")
