"""What is sent to a run's volume in a real cluster arrives, and comes back."""

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
from tests.lab.volume.run_there import LIBRARY, There, digests, start
from tests.waiting import until

LISTENS = """
import socket, time
for _ in range(600):
    try:
        socket.create_connection(("127.0.0.1", 5000)).close()
        break
    except OSError:
        time.sleep(0.2)
"""


class Deleted(VolumeRun):
    """Loses its pod once, in the midst of an upload."""

    def connect(self, argv: Sequence[str]) -> Any:
        return Dying(super().connect(argv), self) if not self.lost else super().connect(argv)

    lost = False


class Dying:
    def __init__(self, pipe: Any, remote: Deleted) -> None:
        self.read, self.close = pipe.read, pipe.close
        self._pipe, self._remote, self._left = pipe, remote, 20 << 20

    def write(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0 and not self._remote.lost:
            self._remote.lost = True
            self._remote.cluster.delete("Pod", f"{self._remote.place.run}-mover", grace=0)
        if self._remote.lost:
            time.sleep(0.1)  # the kubelet needs a moment to kill it
        self._pipe.write(data)


def test_an_upload_goes_on_when_its_pod_is_deleted_and_is_not_done_twice(there: There, books: Path) -> None:
    (books / "large").write_bytes(random.Random(1).randbytes(60 << 20))
    told: list[TransferProgress] = []
    items = [
        folder_item(books, f"data/{there.name}", there.name),
        Item(files={"spec.yaml": b"x"}, into=f"runs/{there.name}"),
    ]
    remote = Deleted(there.run, there.ref, cluster=there.cluster, moving=True)
    done = upload(items, remote, told.append)
    assert any(progress.waiting for progress in told), "nothing was cut"
    assert done.done == done.total
    assert there.digests(f"data/{there.name}") == digests(books)
    again = upload(items, remote)
    assert again.present == again.total
    remote.close()


def test_cp_goes_both_ways(there: There, books: Path) -> None:
    text = there.stoker("cp", "books", f"{there.name}:/data/novels").stdout.decode()
    assert "checked" in text
    assert there.digests("data/novels") == digests(books)
    (there.folder / "note.txt").write_text("note")
    there.stoker("cp", "note.txt", f"{there.name}:notes/")
    assert there.digests(f"runs/{there.name}/notes") == {"note.txt": hashlib.sha256(b"note").hexdigest()}
    there.stoker("cp", f"{there.name}:/data/novels", "back")
    assert digests(there.folder / "back") == digests(books)
    record = json.loads(there.stoker("cp", f"{there.name}:/data/novels/a", ".", "--json").stdout)
    assert record["files"] == len(digests(there.folder / "a"))
    assert digests(there.folder / "a") == digests(books / "a")


def test_a_whole_run_comes_back_with_the_token_set_that_it_was_trained_on(there: There, book: Path) -> None:
    words = ["model=gpt2-micro", "model.layers=1", "batch.length=16", "until.steps=5", f"data.path={book}"]
    words += ["data.tokenizer={train: 300}"]
    words += [
        f"name={there.name}b",
        "on.kind=kubernetes",
        f"on.volume={there.ref.volume}",
        f"on.image={there.ref.image}",
    ]
    run = begin(load(None, [*words, f"env.PYTHONPATH={LIBRARY}"]).spec, runs=there.folder / "runs").run
    upload(staged(run), there.remote())
    place = replace(there.ref, run=run.name)
    place.write(run)
    consent.record_image(run, place.image)
    for _ in range(2):  # the second time it is brought up to date
        there.stoker("cp", f"{run.name}:", "copy")
    copy = RunDir(there.folder / "copy")
    assert token_set(copy).path == copy.path / "data" / run.data().key
    said = there.stoker("cp", f"{run.name}:export", "out", code=2).stderr.decode()
    assert f"/stoker/runs/{run.name} contains: checkpoints, data.json, " in said


def test_runs_share_a_reader_and_it_gets_what_the_image_gets_from_a_volume(there: There) -> None:
    mount = {"name": "lent", "mountPath": "/lent"}
    fills = {
        "name": "fills",
        "image": there.ref.image,
        "command": ["cp", "-r", f"{LIBRARY}/stoker", "/lent/"],
        "volumeMounts": [mount, {"name": "stoker", "mountPath": "/stoker"}],
    }
    added = {"volumes": [{"name": "lent", "emptyDir": {}}], "initContainers": [fills]}
    pod = {"spec": added | {"containers": [{"name": "pytorch", "volumeMounts": [mount]}]}}
    spec = there.run.any_spec()
    spec = spec.model_copy(update={"env": {"PYTHONPATH": "/lent"}, "on": spec.on.model_copy(update={"pod": pod})})
    there.run.write_spec(spec)
    consent.record_image(there.run, there.ref.image)
    first = there.remote().make()
    assert VolumeRun(there.run, replace(there.ref, run="another"), cluster=there.cluster).make() == first
    assert "/lent/stoker" in there.kubectl(
        "exec", first, "--", "python3", "-c", "import stoker; print(stoker.__file__)"
    )
    there.run.write_spec(spec.model_copy(update={"env": {}}))
    with pytest.raises(UserError, match=r"cannot run Stoker: .*No module named.*env\.PYTHONPATH"):
        there.remote().make()


def test_cp_says_what_is_wrong_in_one_line(there: There) -> None:
    said = there.stoker("cp", f"{there.name}:/data/nothing", ".", code=2).stderr.decode()
    assert said.startswith("stoker: there is no /stoker/data/nothing")
    said = there.stoker("cp", f"{there.name}:/../etc/passwd", ".", code=2).stderr.decode()
    assert "is not in /stoker" in said
    with open(there.folder / "huge", "wb") as file:
        file.truncate(shutil.disk_usage("/").total * 2)
    said = there.stoker("cp", "huge", f"{there.name}:/data/", code=2).stderr.decode()
    assert "GiB must be written to /stoker" in said
    assert "GiB are free there" in said


@pytest.fixture
def bucket(there: There, lab: Any, forwarded: Callable[..., AbstractContextManager[int]]) -> Iterator[Any]:
    """A client of an S3 that runs in the cluster and has a bucket; the run's pods know the way to it."""
    serve = "from moto.server import main; main(['-H', '0.0.0.0', '-p', '5000'])"
    start(lab, there.kubectl, "s3", serve, until="Running")
    there.kubectl("exec", "s3", "--", "python3", "-c", LISTENS)  # kubectl forwards to nothing else
    address = there.kubectl.json("get", "pod", "s3")["status"]["podIP"]
    spec = there.run.any_spec()
    there.run.write_spec(spec.model_copy(update={"env": spec.env | {"AWS_ENDPOINT_URL": f"http://{address}:5000"}}))
    consent.record_image(there.run, there.ref.image)
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": "us-east-1"}
    with forwarded(there.kubectl, "s3", 5000) as port:
        client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", **keys)
        client.create_bucket(Bucket="public")
        yield client


def test_an_archive_from_a_bucket_is_unpacked_inside_the_cluster(there: There, books: Path, bucket: Any) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as tar:
        tar.add(books, "books")
    bucket.put_object(Bucket="public", Key="sets/books.tar.gz", Body=packed.getvalue(), ACL="public-read")
    argv = [sys.executable, "-m", "stoker", "cp", "s3://public/sets/books.tar.gz", f"{there.name}:/data"]
    words = ["--extract", "--anonymous", "--region", "us-east-1"]
    process = subprocess.Popen([*argv, *words], cwd=there.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    until(lambda: f"{there.name}-mover" in there.pods() or process.poll() is not None, seconds=120, every_s=0.1)
    there.kubectl("wait", "pod", f"{there.name}-mover", "--for=condition=Ready", "--timeout=300s", check=False)
    pause = random.uniform(0.2, 2.0)
    print(f"the mover is deleted after {pause} seconds")
    time.sleep(pause)
    there.kubectl("delete", "pod", f"{there.name}-mover", "--now", "--wait=false", check=False)
    output = process.communicate(timeout=300)[0].decode()
    assert process.returncode == 0, output
    assert there.digests("data/books") == digests(books)
    assert f"{there.name}-mover" not in there.pods()


def test_a_claim_or_an_image_that_is_not_there_is_named(there: There, lab: Any) -> None:
    missing = VolumeRun(there.run, replace(there.ref, volume="nothing"), cluster=there.cluster)
    with pytest.raises(UserError, match=r"has no volume claim 'nothing'.*stoker"):
        missing.make()
    with trusting(True):
        wrong = VolumeRun(there.run, replace(there.ref, image=f"{lab.registry}/none:1"), cluster=there.cluster)
    with pytest.raises(UserError, match=r"the image .*none:1 cannot be pulled"):
        wrong.make()
    with trusting(True):
        bare = VolumeRun(there.run, replace(there.ref, image=lab.bare), cluster=there.cluster)
    with pytest.raises(UserError, match=r"the image .* cannot start python3"):
        bare.make()
    left = [there.kubectl.json("get", "pod", name) for name in there.pods("stoker.dev/reader=shared")]
    assert {pod["spec"]["containers"][0]["image"] for pod in left} <= {there.ref.image}


def test_a_large_file_goes_out_and_comes_back(there: There, tmp_path: Path) -> None:
    """Prints what it reached."""
    large = tmp_path / "large"
    large.mkdir()
    (large / "x").write_bytes(random.Random(1).randbytes(64 << 20))
    remote = there.remote()
    remote.make()
    began = time.monotonic()
    upload([folder_item(large, "data/large", "large")], remote)
    up, began = time.monotonic() - began, time.monotonic()
    download(remote, "data/large", tmp_path / "back")
    down = time.monotonic() - began
    print(f"up {67.1 / up:.0f} MB/s, down {67.1 / down:.0f} MB/s")
    assert (tmp_path / "back/x").read_bytes() == (large / "x").read_bytes()
