"""A run's volume in a real cluster: what is sent to it arrives, and what lies on it is read back."""

import hashlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from stoker.api.run import open_run
from stoker.kube import Cluster, connect
from stoker.launch.remote import Remote
from stoker.launch.transfer.client import download, upload
from stoker.launch.transfer.meter import Progress
from stoker.launch.transfer.send import Item, folder_item
from stoker.rundir import PlaceRef, RunDir
from stoker.spec.errors import UserError
from stoker.spec.run import ScriptSpec

SOURCE = Path(__file__).parents[2] / "src"
VOLUME = "stoker"
PATIENCE_S = 180
LIBRARY = "/stoker/lib"  # the image has no Stoker: it lies on the volume
DIGESTS = """
import hashlib, json, pathlib, sys
root = pathlib.Path(sys.argv[1])
files = sorted(path for path in root.rglob("*") if path.is_file() and not path.name.startswith(".stoker"))
print(json.dumps({str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}))
"""

LISTENS = """
import socket, time
for _ in range(600):
    try:
        socket.create_connection(("127.0.0.1", 5000)).close()
        break
    except OSError:
        time.sleep(0.2)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class There:
    """A run in the cluster, as it is known here."""

    name: str
    run: RunDir
    ref: PlaceRef
    folder: Path
    cluster: Cluster
    kubectl: Any

    def remote(self, *, moving: bool = False) -> Remote:
        return Remote(self.ref, self.run.any_spec(), cluster=self.cluster, moving=moving)

    def stoker(self, *words: str, code: int = 0, input: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        argv = [sys.executable, "-m", "stoker", *words]
        done = subprocess.run(argv, cwd=self.folder, capture_output=True, timeout=300, input=input or b"")
        assert done.returncode == code, (done.returncode, done.stdout[-3000:], done.stderr[-3000:])
        return done

    def digests(self, path: str) -> dict[str, str]:
        """Of the files below a path of the volume, taken there."""
        pod = self.remote().make()
        found: dict[str, str] = json.loads(self.kubectl("exec", pod, "--", "python3", "-c", DIGESTS, f"/stoker/{path}"))
        return found

    def pods(self, *labels: str) -> list[str]:
        found = self.kubectl.json("get", "pods", *(f"--selector={label}" for label in labels))["items"]
        return [pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]]


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def kubectl(lab: Any) -> Iterator[Any]:
    """A namespace for all tests of this file, whose volume has Stoker on it."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    lab.kubectl("create", "namespace", name)
    found = replace(lab.kubectl, namespace=name)
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    found.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": VOLUME}, "spec": claim})
    lay(lab, found)
    yield found
    found("delete", "namespace", name, "--wait=false")
    found("delete", "pods", "--all", "--grace-period=0", "--force", "--wait=false")


@pytest.fixture
def there(lab: Any, kubectl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[There]:
    monkeypatch.setenv("KUBECONFIG", str(lab.kubeconfig))
    name = f"demo-{uuid.uuid4().hex[:4]}"
    on = {"kind": "kubernetes", "image": lab.base, "volume": VOLUME, "namespace": kubectl.namespace}
    values = {"name": name, "script": "train.py", "env": {"PYTHONPATH": LIBRARY}, "on": on}
    run = RunDir(tmp_path / "runs" / name)
    run.create(ScriptSpec.model_validate(values), None)
    cluster = connect(None, kubectl.namespace)
    ref = PlaceRef(
        kind="kubernetes",
        context=cluster.context,
        namespace=kubectl.namespace,
        job="job",
        run=name,
        volume=VOLUME,
        image=lab.base,
    )
    run.write_place(ref)
    yield There(name=name, run=run, ref=ref, folder=tmp_path, cluster=cluster, kubectl=kubectl)
    for labels in (f"stoker.dev/reader={name}", f"stoker.dev/run={name}"):
        kubectl("delete", "pods", f"--selector={labels}", "--now", "--wait=false")


def start(lab: Any, kubectl: Any, name: str, code: str, *, until: str, **labels: str) -> str:
    """A pod that runs some Python, with the volume; gives its name."""
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
    kubectl("wait", "pod", name, f"--for=jsonpath={{.status.phase}}={until}", f"--timeout={PATIENCE_S}s")
    return name


def lay(lab: Any, kubectl: Any) -> None:
    """Stoker onto the volume."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(SOURCE / "stoker", "stoker", filter=lambda info: None if "__pycache__" in info.name else info)
    pod = start(lab, kubectl, "lays", "import time; time.sleep(600)", until="Running")
    unpack = f"import sys, tarfile; tarfile.open(fileobj=sys.stdin.buffer, mode='r|').extractall('{LIBRARY}')"
    subprocess.run(kubectl.argv("exec", "-i", pod, "--", "python3", "-c", unpack), input=packed.getvalue(), check=True)
    kubectl("delete", "pod", pod, "--now", "--wait=false")


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


class Deleted(Remote):
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
            self._remote.cluster.delete("Pod", f"{self._remote.ref.run}-mover", grace=0)
        if self._remote.lost:
            time.sleep(0.1)  # the kubelet needs a moment to kill it
        self._pipe.write(data)


def test_an_upload_goes_on_when_its_pod_is_deleted_and_is_not_done_twice(there: There, books: Path) -> None:
    (books / "large").write_bytes(random.Random(1).randbytes(60 << 20))
    told: list[Progress] = []
    items = [
        folder_item(books, f"data/{there.name}", there.name),
        Item(files={"spec.yaml": b"x"}, into=f"runs/{there.name}"),
    ]
    remote = Deleted(there.ref, there.run.any_spec(), cluster=there.cluster, moving=True)
    done = upload(items, remote, told.append)
    assert any(progress.waiting for progress in told), "nothing was cut"
    assert done.done == done.total
    assert there.digests(f"data/{there.name}") == digests(books)
    again = upload(items, remote)
    assert again.there == again.total
    remote.remove()


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


def test_cp_says_what_is_wrong_in_one_line(there: There) -> None:
    said = there.stoker("cp", f"{there.name}:/data/nothing", ".", code=2).stderr.decode()
    assert said.startswith("stoker: there is no /stoker/data/nothing")
    said = there.stoker("cp", f"{there.name}:/../etc/passwd", ".", code=2).stderr.decode()
    assert "is not in /stoker" in said
    with open(there.folder / "huge", "wb") as file:
        file.truncate(shutil.disk_usage("/").total * 2)
    said = there.stoker("cp", "huge", f"{there.name}:/data/", code=2).stderr.decode()
    assert "GiB are to be written to /stoker" in said
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
    deadline = time.monotonic() + 120
    while f"{there.name}-mover" not in there.pods() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    there.kubectl("wait", "pod", f"{there.name}-mover", "--for=condition=Ready", "--timeout=120s", check=False)
    time.sleep(random.uniform(0.2, 2.0))
    there.kubectl("delete", "pod", f"{there.name}-mover", "--now", "--wait=false", check=False)
    output = process.communicate(timeout=300)[0].decode()
    assert process.returncode == 0, output
    assert there.digests("data/books") == digests(books)
    assert f"{there.name}-mover" not in there.pods()


def test_a_shell_runs_a_command_in_the_runs_folder_and_leaves_nothing(there: There) -> None:
    there.stoker("cp", str(there.run.path / "spec.yaml"), f"{there.name}:spec.yaml")
    done = there.stoker("shell", there.name, "--", "sh", "-c", "pwd; cat; echo bad >&2; exit 7", input=b"typed", code=7)
    assert done.stdout.decode() == f"/stoker/runs/{there.name}\ntyped"
    assert done.stderr.decode() == "bad\n"
    assert not [name for name in there.pods(f"stoker.dev/reader={there.name}") if "shell" in name]


WORKER = """
import os, subprocess, sys, time
secret = {"RANK": "1", "STOKER_RUN_DIR": "/stoker/runs/NAME", "HF_TOKEN": "hf_verysecret", "PLAIN": "shown"}
print("[1] from rank one", flush=True)
print("[0] from rank zero", flush=True)
subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"], env=os.environ | secret)
"""


@pytest.fixture
def live(there: There, lab: Any) -> str:
    """A pod that looks like one of the run's."""
    name = of_the_run(there, lab, WORKER.replace("NAME", there.name), until="Running")
    there.stoker("cp", str(there.run.path / "spec.yaml"), f"{there.name}:spec.yaml")
    return name


def of_the_run(there: There, lab: Any, code: str, *, until: str) -> str:
    labels = {"stoker.dev/run": there.name, "batch.kubernetes.io/job-completion-index": "0"}
    return start(lab, there.kubectl, f"{there.name}-0-abcde", code, until=until, **labels)


def test_env_tells_what_a_worker_in_a_pod_finds_and_no_secret(there: There, live: str) -> None:
    spec = there.run.any_spec()
    there.run.write_spec(spec.model_copy(update={"on": spec.on.model_copy(update={"workers": 2})}))
    done = there.stoker("env", there.name, "--rank", "1", "--json")
    found = json.loads(done.stdout)
    assert found["pod"] == live
    assert found["environment"]["PLAIN"] == "shown"
    assert found["environment"]["HF_TOKEN"] == "***"
    assert b"hf_verysecret" not in done.stdout
    assert found["versions"]["torch"]
    assert any(mount["path"] == "/stoker" for mount in found["mounts"])
    assert "rank 5 now" in there.stoker("env", there.name, "--rank", "5", code=2).stderr.decode()


def logged(there: There) -> None:
    """Logs of two ranks on the volume."""
    files: dict[str, Path | bytes] = {"spec.yaml": (there.run.path / "spec.yaml").read_bytes()}
    for rank in (0, 1):
        lines = [f"2026-11-15T12:00:{second:02d}.{rank}00Z step {second} of {rank}\n" for second in range(30)]
        files[f"logs/rank-{rank}.log"] = "".join(lines).encode()
    upload([Item(files=files, into=f"runs/{there.name}")], there.remote())


def test_logs_are_read_after_the_pods_are_gone_through_one_reader(there: There) -> None:
    logged(there)
    first = there.stoker("logs", there.name).stdout.decode().splitlines()
    assert first == [f"step {second} of 0" for second in range(30)]
    uid = there.kubectl.json("get", "pod", f"{there.name}-reader")["metadata"]["uid"]
    all_ranks = there.stoker("logs", there.name, "--all", "--tail", "2").stdout.decode().splitlines()
    assert all_ranks == [f"[{rank}] step {second} of {rank}" for second in (28, 29) for rank in (0, 1)]
    record = json.loads(there.stoker("logs", there.name, "--rank", "1", "--json", "--tail", "1").stdout)
    assert record["line"] == "step 29 of 1"
    said = there.stoker("logs", there.name, "--rank", "7", code=2).stderr.decode()
    assert said == f"stoker: run '{there.name}' has no log of rank 7. It has those of 0, 1\n"
    assert there.kubectl.json("get", "pod", f"{there.name}-reader")["metadata"]["uid"] == uid


def test_a_live_pod_is_looked_through_and_no_reader_is_made(there: There, live: str) -> None:
    assert live
    logged(there)
    there.kubectl("delete", "pod", f"{there.name}-reader", "--now", check=False)
    assert there.stoker("logs", there.name, "--tail", "1").stdout.decode() == "step 29 of 0\n"
    assert f"{there.name}-reader" not in there.pods()


HOLDS = """
import pathlib, time
from stoker.rundir import RunDir
with RunDir(pathlib.Path("/stoker/runs/NAME")).lock():
    time.sleep(600)
"""
FOLLOWERS = """
import glob
for path in glob.glob("/proc/[0-9]*/cmdline"):
    words = open(path).read().split(chr(0))
    if "logs" in words:
        print(words)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_who_stops_following_leaves_no_process_in_the_pod(there: There, lab: Any, how: signal.Signals) -> None:
    logged(there)
    pod = of_the_run(there, lab, HOLDS.replace("NAME", there.name), until="Running")
    argv = [sys.executable, "-m", "stoker", "logs", there.name, "-f"]
    with subprocess.Popen(argv, cwd=there.folder, stdout=subprocess.PIPE) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"step 0 of 0\n"
        assert "--follow" in there.kubectl("exec", pod, "--", "python3", "-c", FOLLOWERS)
        follower.send_signal(how)
    deadline = time.monotonic() + 20
    while there.kubectl("exec", pod, "--", "python3", "-c", FOLLOWERS):
        assert time.monotonic() < deadline
        time.sleep(0.5)


def test_python_reads_what_a_run_in_the_cluster_has_written_down(there: There) -> None:
    run = open_run(there.run.path)
    logged(there)
    assert list(run.metrics()) == [], "no step has been logged"
    files = {"metrics.jsonl": b'{"step": 1, "loss": 2.5}\n', "events.jsonl": b'{"time": 1.0, "kind": "started"}\n'}
    upload([Item(files=dict(files), into=f"runs/{there.name}")], there.remote())
    metrics = run.metrics()
    assert (metrics if isinstance(metrics, list) else metrics.to_dict("records")) == [{"step": 1, "loss": 2.5}]
    events = run.events()
    assert events[0]["kind"] == "started"
    assert any(one["kind"] == "cluster" for one in events)
    assert list(run.logs(rank=None, tail=1)) == ["[0] step 29 of 0", "[1] step 29 of 1"]


def test_what_is_not_on_the_volume_yet_is_told_by_the_pods(there: There, live: str) -> None:
    assert live
    assert there.stoker("logs", there.name).stdout.decode() == "from rank zero\n"
    assert "[1] from rank one" in there.stoker("logs", there.name, "--all").stdout.decode()


def test_where_nobody_sees_the_volume_the_pods_tell(there: There, lab: Any) -> None:
    pod = of_the_run(there, lab, "print('[0] the last words')", until="Succeeded")
    there.run.write_place(replace(there.ref, volume="nothing"))
    assert there.stoker("logs", there.name).stdout.decode() == "the last words\n"
    there.kubectl("delete", "pod", pod, "--now")
    assert "has no volume claim 'nothing'" in there.stoker("logs", there.name, code=2).stderr.decode()


def test_a_claim_or_an_image_that_is_not_there_is_named(there: There, lab: Any) -> None:
    spec = there.run.any_spec()
    missing = Remote(replace(there.ref, volume="nothing"), spec, cluster=there.cluster)
    with pytest.raises(UserError, match=r"has no volume claim 'nothing'.*stoker"):
        missing.make()
    wrong = Remote(replace(there.ref, image=f"{lab.registry}/none:1"), spec, cluster=there.cluster)
    with pytest.raises(UserError, match=r"the image .*none:1 cannot be pulled"):
        wrong.make()
    bare = Remote(replace(there.ref, image=lab.bare), spec, cluster=there.cluster)
    with pytest.raises(UserError, match=r"the image .* has no python3"):
        bare.make()
    assert not there.pods(f"stoker.dev/reader={there.name}")


def test_who_may_not_exec_is_told_which_role_would_allow_it(there: There, tmp_path: Path) -> None:
    there.remote().make()
    there.kubectl("create", "serviceaccount", "looker")
    there.kubectl("create", "role", "looker", "--verb=get,list,watch", "--resource=pods,persistentvolumeclaims")
    there.kubectl("create", "rolebinding", "looker", "--role=looker", f"--serviceaccount={there.ref.namespace}:looker")
    token = there.kubectl("create", "token", "looker").strip()
    config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    config["users"][0]["user"] = {"token": token}
    mine = tmp_path / "kubeconfig"
    mine.write_text(yaml.safe_dump(config))
    argv = [sys.executable, "-m", "stoker", "logs", there.name]
    environment = os.environ | {"KUBECONFIG": str(mine)}
    done = subprocess.run(argv, cwd=there.folder, capture_output=True, text=True, env=environment)
    assert done.returncode == 2, done.stdout
    assert "you may not get pods/exec" in done.stderr  # a websocket begins with a GET
    assert "kind: Role" in done.stderr


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
