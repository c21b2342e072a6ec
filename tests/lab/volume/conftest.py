"""A namespace with Stoker on its volume, and runs on that volume."""

import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.backends.kubernetes.place import ClusterPlace
from stoker.kube import connect
from stoker.rundir import RunDir, consent
from stoker.spec.run import ScriptSpec
from tests.lab.namespaces import VOLUME, fresh
from tests.lab.volume.cluster_run import LIBRARY, ClusterRun, start_run_pod, upload_stoker

WORKER = """
import os, subprocess, sys, time
secret = {"RANK": "1", "STOKER_RUN_DIR": "/stoker/runs/NAME", "HF_TOKEN": "hf_verysecret", "PLAIN": "shown"}
print("[1] from rank one", flush=True)
print("[0] from rank zero", flush=True)
subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"], env=os.environ | secret)
"""


@pytest.fixture(scope="session")
def kubectl(lab: Any) -> Iterator[Any]:
    """A namespace for all tests of this folder, with Stoker on its volume."""
    with fresh(lab.kubectl) as kubectl:
        upload_stoker(lab, kubectl)
        yield kubectl


@pytest.fixture
def cluster_run(lab: Any, kubectl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterRun]:
    monkeypatch.setenv("KUBECONFIG", str(lab.kubeconfig))
    name = f"demo-{uuid.uuid4().hex[:4]}"
    on = {"kind": "kubernetes", "image": lab.base, "volume": VOLUME, "namespace": kubectl.namespace}
    values = {"name": name, "script": "train.py", "env": {"PYTHONPATH": LIBRARY}, "on": on}
    run = RunDir(tmp_path / "runs" / name)
    run.create(ScriptSpec.model_validate(values), None)
    cluster = connect(None, kubectl.namespace)
    ref = ClusterPlace(
        kind="kubernetes",
        context=cluster.context,
        namespace=kubectl.namespace,
        job="job",
        run=name,
        volume=VOLUME,
        image=lab.base,
    )
    ref.write(run)
    consent.record_image(run, ref.image)
    yield ClusterRun(name=name, run=run, ref=ref, folder=tmp_path, cluster=cluster, kubectl=kubectl)
    for labels in (f"stoker.dev/reader={name}", f"stoker.dev/run={name}"):
        kubectl("delete", "pods", f"--selector={labels}", "--now", "--wait=false")


@pytest.fixture
def live(cluster_run: ClusterRun, lab: Any) -> str:
    """A pod with the labels of a pod of the run."""
    name = start_run_pod(cluster_run, lab, WORKER.replace("NAME", cluster_run.name), until="Running")
    cluster_run.stoker("cp", str(cluster_run.run.path / "spec.yaml"), f"{cluster_run.name}:spec.yaml")
    return name


@pytest.fixture
def books(tmp_path: Path) -> Path:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw, folder = random.Random(seed), tmp_path / "books"
    for number, size in enumerate([0, 10, 70_000, 3 << 20, 5 << 20, *(draw.randrange(3000) for _ in range(40))]):
        file = folder / draw.choice(["", "a", "a/b"]) / f"{number}.bin"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(draw.randbytes(size))
    return folder
