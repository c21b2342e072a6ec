"""Files are copied to the volume of a run in a real cluster, and back."""

import hashlib
import io
import json
import random
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest

from stoker.api.opening import begin
from stoker.backends.kubernetes.volume.remote import VolumeRun
from stoker.backends.kubernetes.volume.staging import staged
from stoker.backends.transfer.client import download, upload
from stoker.backends.transfer.meter import TransferProgress
from stoker.backends.transfer.send import Item, folder_item
from stoker.observe.step_batch import token_set
from stoker.rundir import RunDir, consent
from stoker.spec.errors import UserError
from stoker.spec.load import load
from stoker.spec.trust import trusting
from tests.lab.volume.cluster_run import LIBRARY, ClusterRun, digests, start
from tests.waiting import until

WAIT_FOR_SERVER = """
import socket, time
for _ in range(600):
    try:
        socket.create_connection(("127.0.0.1", 5000)).close()
        break
    except OSError:
        time.sleep(0.2)
"""


class DeletesPod(VolumeRun):
    """Its pod is deleted once, during an upload."""

    def connect(self, argv: Sequence[str]) -> Any:
        return DeletingPipe(super().connect(argv), self) if not self.deleted else super().connect(argv)

    deleted = False


class DeletingPipe:
    def __init__(self, pipe: Any, remote: DeletesPod) -> None:
        self.read, self.close = pipe.read, pipe.close
        self._pipe, self._remote, self._remaining = pipe, remote, 20 << 20

    def write(self, data: bytes) -> None:
        self._remaining -= len(data)
        if self._remaining < 0 and not self._remote.deleted:
            self._remote.deleted = True
            self._remote.cluster.delete("Pod", f"{self._remote.place.run}-mover", grace=0)
        if self._remote.deleted:
            time.sleep(0.1)  # the kubelet needs a moment to kill it
        self._pipe.write(data)


def test_an_upload_resumes_when_its_pod_is_deleted_and_is_not_repeated(cluster_run: ClusterRun, books: Path) -> None:
    (books / "large").write_bytes(random.Random(1).randbytes(60 << 20))
    reports: list[TransferProgress] = []
    items = [
        folder_item(books, f"data/{cluster_run.name}", cluster_run.name),
        Item(files={"spec.yaml": b"x"}, into=f"runs/{cluster_run.name}"),
    ]
    remote = DeletesPod(cluster_run.run, cluster_run.ref, cluster=cluster_run.cluster, moving=True)
    done = upload(items, remote, reports.append)
    assert any(progress.waiting for progress in reports), "the upload was not interrupted"
    assert done.done == done.total
    assert cluster_run.digests(f"data/{cluster_run.name}") == digests(books)
    again = upload(items, remote)
    assert again.present == again.total
    remote.close()


def test_cp_goes_both_ways(cluster_run: ClusterRun, books: Path) -> None:
    text = cluster_run.stoker("cp", "books", f"{cluster_run.name}:/data/novels").stdout.decode()
    assert "checked" in text
    assert cluster_run.digests("data/novels") == digests(books)
    (cluster_run.folder / "note.txt").write_text("note")
    cluster_run.stoker("cp", "note.txt", f"{cluster_run.name}:notes/")
    assert cluster_run.digests(f"runs/{cluster_run.name}/notes") == {"note.txt": hashlib.sha256(b"note").hexdigest()}
    cluster_run.stoker("cp", f"{cluster_run.name}:/data/novels", "back")
    assert digests(cluster_run.folder / "back") == digests(books)
    record = json.loads(cluster_run.stoker("cp", f"{cluster_run.name}:/data/novels/a", ".", "--json").stdout)
    assert record["files"] == len(digests(cluster_run.folder / "a"))
    assert digests(cluster_run.folder / "a") == digests(books / "a")


def test_a_run_is_copied_with_its_token_set(cluster_run: ClusterRun, book: Path) -> None:
    overrides = ["model=gpt2-micro", "model.layers=1", "batch.length=16", "until.steps=5", f"data.path={book}"]
    overrides += ["data.tokenizer={train: 300}"]
    overrides += [
        f"name={cluster_run.name}b",
        "on.kind=kubernetes",
        f"on.volume={cluster_run.ref.volume}",
        f"on.image={cluster_run.ref.image}",
    ]
    run = begin(load(None, [*overrides, f"env.PYTHONPATH={LIBRARY}"]).spec, runs=cluster_run.folder / "runs").run
    upload(staged(run), cluster_run.remote())
    place = replace(cluster_run.ref, run=run.name)
    place.write(run)
    consent.record_image(run, place.image)
    for _ in range(2):  # the second time only new files are copied
        cluster_run.stoker("cp", f"{run.name}:", "copy")
    copy = RunDir(cluster_run.folder / "copy")
    assert token_set(copy).path == copy.path / "data" / run.data().key
    error = cluster_run.stoker("cp", f"{run.name}:export", "out", code=2).stderr.decode()
    assert f"/stoker/runs/{run.name} contains: checkpoints, data.json, " in error


def test_runs_share_a_reader_which_has_the_volumes_of_the_run(cluster_run: ClusterRun) -> None:
    mount = {"name": "extra", "mountPath": "/extra"}
    init_container = {
        "name": "fill",
        "image": cluster_run.ref.image,
        "command": ["cp", "-r", f"{LIBRARY}/stoker", "/extra/"],
        "volumeMounts": [mount, {"name": "stoker", "mountPath": "/stoker"}],
    }
    pod_spec = {"volumes": [{"name": "extra", "emptyDir": {}}], "initContainers": [init_container]}
    pod = {"spec": pod_spec | {"containers": [{"name": "pytorch", "volumeMounts": [mount]}]}}
    spec = cluster_run.run.any_spec()
    spec = spec.model_copy(update={"env": {"PYTHONPATH": "/extra"}, "on": spec.on.model_copy(update={"pod": pod})})
    cluster_run.run.write_spec(spec)
    consent.record_image(cluster_run.run, cluster_run.ref.image)
    first = cluster_run.remote().make()
    assert (
        VolumeRun(cluster_run.run, replace(cluster_run.ref, run="another"), cluster=cluster_run.cluster).make() == first
    )
    assert "/extra/stoker" in cluster_run.kubectl(
        "exec", first, "--", "python3", "-c", "import stoker; print(stoker.__file__)"
    )
    cluster_run.run.write_spec(spec.model_copy(update={"env": {}}))
    with pytest.raises(UserError, match=r"cannot run Stoker: .*No module named.*env\.PYTHONPATH"):
        cluster_run.remote().make()


def test_cp_reports_errors_in_one_line(cluster_run: ClusterRun) -> None:
    error = cluster_run.stoker("cp", f"{cluster_run.name}:/data/nothing", ".", code=2).stderr.decode()
    assert error.startswith("stoker: there is no /stoker/data/nothing")
    error = cluster_run.stoker("cp", f"{cluster_run.name}:/../etc/passwd", ".", code=2).stderr.decode()
    assert "is not in /stoker" in error
    with open(cluster_run.folder / "huge", "wb") as file:
        file.truncate(shutil.disk_usage("/").total * 2)
    error = cluster_run.stoker("cp", "huge", f"{cluster_run.name}:/data/", code=2).stderr.decode()
    assert "GiB must be written to /stoker" in error
    assert "GiB are free there" in error


@pytest.fixture
def bucket(cluster_run: ClusterRun, lab: Any, forwarded: Callable[..., AbstractContextManager[int]]) -> Iterator[Any]:
    """A client of an S3 server in the cluster, with a bucket. The pods of the run use that server."""
    serve = "from moto.server import main; main(['-H', '0.0.0.0', '-p', '5000'])"
    start(lab, cluster_run.kubectl, "s3", serve, until="Running")
    cluster_run.kubectl("exec", "s3", "--", "python3", "-c", WAIT_FOR_SERVER)  # kubectl forwards only to an open port
    address = cluster_run.kubectl.json("get", "pod", "s3")["status"]["podIP"]
    spec = cluster_run.run.any_spec()
    cluster_run.run.write_spec(
        spec.model_copy(update={"env": spec.env | {"AWS_ENDPOINT_URL": f"http://{address}:5000"}})
    )
    consent.record_image(cluster_run.run, cluster_run.ref.image)
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": "us-east-1"}
    with forwarded(cluster_run.kubectl, "s3", 5000) as port:
        client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", **keys)
        client.create_bucket(Bucket="public")
        yield client


def test_an_archive_from_a_bucket_is_unpacked_inside_the_cluster(
    cluster_run: ClusterRun, books: Path, bucket: Any
) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as tar:
        tar.add(books, "books")
    bucket.put_object(Bucket="public", Key="sets/books.tar.gz", Body=packed.getvalue(), ACL="public-read")
    argv = [sys.executable, "-m", "stoker", "cp", "s3://public/sets/books.tar.gz", f"{cluster_run.name}:/data"]
    options = ["--extract", "--anonymous", "--region", "us-east-1"]
    process = subprocess.Popen(
        [*argv, *options], cwd=cluster_run.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    until(
        lambda: f"{cluster_run.name}-mover" in cluster_run.pods() or process.poll() is not None,
        seconds=120,
        every_s=0.1,
    )
    cluster_run.kubectl(
        "wait", "pod", f"{cluster_run.name}-mover", "--for=condition=Ready", "--timeout=300s", check=False
    )
    pause = random.uniform(0.2, 2.0)
    print(f"the mover is deleted after {pause} seconds")
    time.sleep(pause)
    cluster_run.kubectl("delete", "pod", f"{cluster_run.name}-mover", "--now", "--wait=false", check=False)
    output = process.communicate(timeout=300)[0].decode()
    assert process.returncode == 0, output
    assert cluster_run.digests("data/books") == digests(books)
    assert f"{cluster_run.name}-mover" not in cluster_run.pods()


def test_a_missing_claim_or_image_is_named(cluster_run: ClusterRun, lab: Any) -> None:
    missing = VolumeRun(cluster_run.run, replace(cluster_run.ref, volume="nothing"), cluster=cluster_run.cluster)
    with pytest.raises(UserError, match=r"has no volume claim 'nothing'.*stoker"):
        missing.make()
    with trusting(True):
        wrong = VolumeRun(
            cluster_run.run, replace(cluster_run.ref, image=f"{lab.registry}/none:1"), cluster=cluster_run.cluster
        )
    with pytest.raises(UserError, match=r"the image .*none:1 cannot be pulled"):
        wrong.make()
    with trusting(True):
        bare = VolumeRun(cluster_run.run, replace(cluster_run.ref, image=lab.bare), cluster=cluster_run.cluster)
    with pytest.raises(UserError, match=r"the image .* cannot start python3"):
        bare.make()
    remaining = [cluster_run.kubectl.json("get", "pod", name) for name in cluster_run.pods("stoker.dev/reader=shared")]
    assert {pod["spec"]["containers"][0]["image"] for pod in remaining} <= {cluster_run.ref.image}


def test_a_large_file_is_copied_there_and_back(cluster_run: ClusterRun, tmp_path: Path) -> None:
    """Prints the rates."""
    large = tmp_path / "large"
    large.mkdir()
    (large / "x").write_bytes(random.Random(1).randbytes(64 << 20))
    remote = cluster_run.remote()
    remote.make()
    began = time.monotonic()
    upload([folder_item(large, "data/large", "large")], remote)
    up, began = time.monotonic() - began, time.monotonic()
    download(remote, "data/large", tmp_path / "back")
    down = time.monotonic() - began
    print(f"up {67.1 / up:.0f} MB/s, down {67.1 / down:.0f} MB/s")
    assert (tmp_path / "back/x").read_bytes() == (large / "x").read_bytes()
