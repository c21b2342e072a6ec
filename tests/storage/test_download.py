"""The half of `stoker cp s3://… RUN:/data` that runs in a pod, as a process of this machine."""

import gzip
import io
import json
import os
import random
import subprocess
import sys
import tarfile
import time
from email.message import Message
from pathlib import Path
from typing import Any

import boto3
import pytest

from stoker.data.remote import download as in_process
from stoker.spec.errors import UserError
from stoker.storage.store import open_store
from tests.answers import Answer, answers
from tests.wire import Wire

HOST = "127.0.0.1"


def run_download(*arguments: str, env: dict[str, str] | None = None, code: int = 0) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-P", "-m", "stoker.data.remote.download", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, env=os.environ | (env or {}))
    assert done.returncode == code, done.stdout + done.stderr
    return done


def phases(url: str, folder: Path) -> list[object]:
    """Without a process of its own."""
    phases_of_steps = [step["phase"] for step in in_process.download(url, folder, unpack=True)]
    return [phase for number, phase in enumerate(phases_of_steps) if phases_of_steps[:number][-1:] != [phase]]


def tar(files: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return data.getvalue()


@pytest.fixture
def files() -> dict[str, bytes]:
    draw = random.Random(3)
    return {f"part-{number}/x.hdf5": draw.randbytes(400_000) for number in range(5)}


@pytest.fixture
def put(moto: int, s3: str) -> Any:
    """Puts an object into the bucket; gives its URL."""

    def put_object(key: str, data: bytes, **settings: str) -> str:
        client = boto3.client("s3", endpoint_url=f"http://{HOST}:{moto}")
        client.put_object(Bucket=s3.split("/")[2], Key=key, Body=data, **settings)
        return f"s3://{s3.split('/')[2]}/{key}"

    return put_object


@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
def test_an_archive_is_fetched_and_unpacked_in_place_and_only_once(
    put: Any, files: dict[str, bytes], tmp_path: Path, ending: str
) -> None:
    packed = tar(files)
    url = put(f"sets/wiki.{ending}", gzip.compress(packed) if ending == "tar.gz" else packed)
    assert phases(url, tmp_path / "data") == ["fetching", "unpacking", "done"]
    assert {name: (tmp_path / "data" / name).read_bytes() for name in files} == files
    assert not list((tmp_path / "data").rglob("*.part"))
    assert phases(url, tmp_path / "data") == ["there"]
    put(f"sets/wiki.{ending}", tar({"new": b"new"}) if ending == "tar" else gzip.compress(tar({"new": b"new"})))
    phases(url, tmp_path / "data")
    assert (tmp_path / "data/new").read_bytes() == b"new"


def test_a_file_and_a_folder_of_files(put: Any, tmp_path: Path) -> None:
    put("sets/a/one.txt", b"one")
    url = put("sets/b.txt", b"two")
    list(in_process.download(url, tmp_path / "data", unpack=False))
    list(in_process.download(url.replace("b.txt", "a"), tmp_path / "data", unpack=False))
    assert (tmp_path / "data/b.txt").read_bytes() == b"two"
    assert (tmp_path / "data/one.txt").read_bytes() == b"one"


def test_a_file_and_a_folder_of_either_store(bucket: str, tmp_path: Path) -> None:
    store = open_store(bucket)
    for url, content in ((f"{bucket}/sets/b.txt", b"two"), (f"{bucket}/sets", b"new"), (f"{bucket}/sets", b"two")):
        store.put("sets/b.txt", content)
        list(in_process.download(url, tmp_path / "data", unpack=False))
        assert (tmp_path / "data/b.txt").read_bytes() == content


def test_the_signature_of_a_url_is_neither_shown_nor_kept(tmp_path: Path) -> None:
    content = [b"text", b"more than announced"]
    headers = {"ETag": '"x"', "Content-Range": "bytes 0-0/4"}

    def answer(_: str, __: str, request: Message) -> Answer:
        return (206, headers, b"t") if request["Range"] == "bytes=0-0" else (200, {"ETag": '"x"'}, content[0])

    with answers(answer) as host:
        url = f"http://{host}/a.txt?signature=hunter2"
        list(in_process.download(url, tmp_path / "data", unpack=False))
        assert (tmp_path / "data/a.txt").read_bytes() == b"text"
        assert not any(b"hunter2" in path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())
        (tmp_path / "data/a.txt").unlink()
        content.pop(0)
        with pytest.raises(UserError, match="changed since it was listed") as refused:
            list(in_process.download(url, tmp_path / "data", unpack=False))
    assert "hunter2" not in str(refused.value)


def test_an_archive_that_was_fetched_is_unpacked_on_request(put: Any, tmp_path: Path) -> None:
    url = put("sets/wiki.tar", tar({"a.txt": b"text"}))
    list(in_process.download(url, tmp_path / "data", unpack=False))
    list(in_process.download(url, tmp_path / "data", unpack=True))
    assert (tmp_path / "data/a.txt").read_bytes() == b"text"


@pytest.mark.parametrize("end", ["", "/"])
def test_a_whole_bucket(put: Any, tmp_path: Path, end: str) -> None:
    put("sets/a/one.txt", b"one")
    bucket = put("two.txt", b"two").removesuffix("/two.txt")
    list(in_process.download(bucket + end, tmp_path / "data", unpack=False))
    assert (tmp_path / "data/sets/a/one.txt").read_bytes() == b"one"
    assert (tmp_path / "data/two.txt").read_bytes() == b"two"


def test_a_file_in_the_place_of_the_folder_is_reported_in_one_line(put: Any, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    done = run_download(put("two.txt", b"two"), str(tmp_path / "data"), code=2)
    assert "cannot be written" in done.stderr
    assert done.stderr.count("\n") <= 2
    assert "Traceback" not in done.stderr


def test_it_resumes_after_a_kill(put: Any, tmp_path: Path, s3_wire: Wire, eventually: Any) -> None:
    files = {"large": random.Random(1).randbytes(30_000_000)}
    url = put("sets/wiki.tar", tar(files))
    s3_wire.most_back = s3_wire.back + 5_000_000
    argv = [sys.executable, "-P", "-m", "stoker.data.remote.download", url, str(tmp_path / "data"), "--extract"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    work = tmp_path / "data/.stoker-download"
    eventually(lambda: any(part.stat().st_size > 1_000_000 for part in work.glob("*.part")))
    process.kill()
    process.communicate()
    s3_wire.most_back = None
    (part,) = work.glob("*.part")
    partial_bytes = part.stat().st_size
    done = run_download(url, str(tmp_path / "data"), "--extract")
    assert json.loads(done.stdout.splitlines()[0])["done"] > partial_bytes
    assert (tmp_path / "data/large").read_bytes() == files["large"]


def test_it_resumes_when_the_network_fails(put: Any, tmp_path: Path, s3_wire: Wire, eventually: Any) -> None:
    data = random.Random(2).randbytes(20_000_000)
    url = put("sets/large.bin", data)
    argv = [sys.executable, "-P", "-m", "stoker.data.remote.download", url, str(tmp_path / "data")]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    work = tmp_path / "data/.stoker-download"
    eventually(lambda: any(part.stat().st_size > 500_000 for part in work.glob("*.part")) or process.poll() is not None)
    s3_wire.take_down()
    time.sleep(0.3)
    s3_wire.mend()
    output = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert (tmp_path / "data/large.bin").read_bytes() == data


def test_public_objects_are_read_without_credentials(put: Any, tmp_path: Path) -> None:
    url = put("sets/b.txt", b"two", ACL="public-read")
    nobody = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_DEFAULT_REGION": ""}
    refused = run_download(url, str(tmp_path / "data"), env=nobody, code=2)
    assert "there are no AWS credentials here" in refused.stderr
    run_download(url, str(tmp_path / "data"), "--anonymous", "--region", "us-east-1", env=nobody)
    assert (tmp_path / "data/b.txt").read_bytes() == b"two"


@pytest.mark.parametrize(
    ("key", "message"),
    [("none.tar", "there is no s3://"), ("b.txt", r"b\.txt is not an archive"), ("evil.tar", "points outside")],
)
def test_mistakes_are_reported_in_one_line(put: Any, tmp_path: Path, key: str, message: str) -> None:
    url = put("sets/b.txt", b"two")
    put("sets/evil.tar", tar({"../evil": b"evil"}))
    with pytest.raises(UserError, match=message):
        phases(url.replace("b.txt", key), tmp_path / "data")
    assert not (tmp_path / "evil").exists()
