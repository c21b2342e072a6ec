"""A run whose directory is on a volume of the cluster, and pods that mount it."""

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.backends.kubernetes.place import ClusterPlace
from stoker.backends.kubernetes.volume.remote import VolumeRun
from stoker.backends.transfer.client import upload
from stoker.backends.transfer.send import Item
from stoker.kube import Cluster
from stoker.rundir import RunDir
from tests.lab.namespaces import VOLUME

SOURCE = Path(__file__).parents[3] / "src"
POD_TIMEOUT_S = 180
LIBRARY = "/stoker/lib"  # the image has no Stoker: it is on the volume
DIGESTS = """
import hashlib, json, pathlib, sys
root = pathlib.Path(sys.argv[1])
files = sorted(path for path in root.rglob("*") if path.is_file() and not path.name.startswith(".stoker"))
print(json.dumps({str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterRun:
    """A run in the cluster, and its local run directory."""

    name: str
    run: RunDir
    ref: ClusterPlace
    folder: Path
    cluster: Cluster
    kubectl: Any

    def remote(self, *, moving: bool = False) -> VolumeRun:
        return VolumeRun(self.run, self.ref, cluster=self.cluster, moving=moving)

    def stoker(self, *words: str, code: int = 0, input: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        argv = [sys.executable, "-m", "stoker", *words]
        done = subprocess.run(argv, cwd=self.folder, capture_output=True, timeout=300, input=input or b"")
        assert done.returncode == code, (done.returncode, done.stdout[-3000:], done.stderr[-3000:])
        return done

    def digests(self, path: str) -> dict[str, str]:
        """The hashes of the files below a path of the volume, computed in a pod."""
        pod = self.remote().make()
        output = self.kubectl("exec", pod, "--", "python3", "-c", DIGESTS, f"/stoker/{path}")
        hashes: dict[str, str] = json.loads(output)
        return hashes

    def pods(self, *labels: str) -> list[str]:
        pods = self.kubectl.json("get", "pods", *(f"--selector={label}" for label in labels))["items"]
        return [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def start(lab: Any, kubectl: Any, name: str, code: str, *, until: str, **labels: str) -> str:
    """Start a pod that runs Python code, with the volume, and return its name."""
    container = {
        "name": "pytorch",
        "image": lab.base,
        "command": ["python3", "-c", code],
        "env": [{"name": "PYTHONPATH", "value": LIBRARY}, {"name": "STOKER_POD", "value": name}],
        "volumeMounts": [{"name": "stoker", "mountPath": "/stoker"}],
    }
    volume = {"name": "stoker", "persistentVolumeClaim": {"claimName": VOLUME}}
    spec = {
        "containers": [container],
        "volumes": [volume],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
    }
    kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec})
    kubectl("wait", "pod", name, f"--for=jsonpath={{.status.phase}}={until}", f"--timeout={POD_TIMEOUT_S}s")
    return name


def upload_stoker(lab: Any, kubectl: Any) -> None:
    """Copy Stoker to the volume."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(SOURCE / "stoker", "stoker", filter=lambda info: None if "__pycache__" in info.name else info)
    pod = start(lab, kubectl, "uploader", "import time; time.sleep(600)", until="Running")
    unpack = f"import sys, tarfile; tarfile.open(fileobj=sys.stdin.buffer, mode='r|').extractall('{LIBRARY}')"
    subprocess.run(kubectl.argv("exec", "-i", pod, "--", "python3", "-c", unpack), input=packed.getvalue(), check=True)
    kubectl("delete", "pod", pod, "--now", "--wait=false")


def start_run_pod(cluster_run: ClusterRun, lab: Any, code: str, *, until: str) -> str:
    labels = {"stoker.dev/run": cluster_run.name, "batch.kubernetes.io/job-completion-index": "0"}
    return start(lab, cluster_run.kubectl, f"{cluster_run.name}-0-abcde", code, until=until, **labels)


def write_logs(cluster_run: ClusterRun) -> None:
    """Write logs of two ranks to the volume."""
    files: dict[str, Path | bytes] = {"spec.yaml": (cluster_run.run.path / "spec.yaml").read_bytes()}
    for rank in (0, 1):
        lines = [f"2026-11-15T12:00:{second:02d}.{rank}00Z step {second} of {rank}\n" for second in range(30)]
        files[f"logs/rank-{rank}.log"] = "".join(lines).encode()
    upload([Item(files=files, into=f"runs/{cluster_run.name}")], cluster_run.remote())
