"""What both kinds of store promise."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from email.message import Message
from pathlib import Path

import pytest

from stoker.spec.errors import UserError
from stoker.storage.store import PART_BYTES, StoreError, cache, open_store, split
from tests.answers import Answer, answers

UPLOAD = "import sys; from pathlib import Path; from stoker.storage.store import open_store; " + (
    "open_store(sys.argv[1]).upload('big', Path(sys.argv[2]))"
)


def test_objects_are_put_listed_read_and_deleted(bucket: str) -> None:
    store = open_store(bucket)
    store.put("one/a", b"first")
    store.put("one/b c+ü", b"second")
    store.put("two/a", b"")

    listing = store.list("one/")

    assert {key: object.size for key, object in listing.objects.items()} == {"one/a": 5, "one/b c+ü": 6}
    assert abs(listing.now - listing.objects["one/a"].modified) < timedelta(minutes=5)
    assert sorted(store.folders()) == ["one", "two"]
    assert (store.get("one/b c+ü"), store.get("two/a"), store.get("three")) == (b"second", b"", None)
    store.delete(["one/a", "one/never"])
    assert list(store.list().objects) == ["one/b c+ü", "two/a"]


@pytest.mark.parametrize(
    ("bucket", "every"), [("s3", 6), pytest.param("gs", 1, marks=pytest.mark.soak)], indirect=["bucket"]
)
def test_of_many_objects_all_are_listed_and_deleted(bucket: str, every: int) -> None:
    """S3 lists 100 objects per response here, and deletes 1000 per request."""
    store = open_store(bucket)
    names = [f"many/{number:04d}" for number in range(1_203)]
    keys = names[::every]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put(key, b"x"), keys))
    assert list(store.list("many/").objects) == keys
    store.delete(names)
    assert not store.list().objects


def test_put_if_absent_succeeds_once(bucket: str) -> None:
    store = open_store(bucket)
    assert store.put_if_absent("lock", b"mine")
    assert not store.put_if_absent("lock", b"yours")
    assert store.get("lock") == b"mine"


@pytest.mark.parametrize("size", [0, 17, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES + 4711])
def test_a_file_comes_back_unchanged_and_its_tag_is_predicted(bucket: str, tmp_path: Path, size: int) -> None:
    store = open_store(bucket)
    file = tmp_path / "file"
    file.write_bytes(os.urandom(size))

    store.upload("file", file)

    object = store.list().objects["file"]
    assert (object.size, object.tag) == (size, store.tag(file))
    store.download("file", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == file.read_bytes()
    assert not list(store.unfinished(""))


def _cut_off(bucket: str, wire, file: Path, eventually: Callable[..., None]) -> None:
    """A machine dies during an upload of four parts at once; at least one part is complete."""
    wire.most = int(5.5 * PART_BYTES)
    process = subprocess.Popen([sys.executable, "-c", UPLOAD, bucket, str(file)])
    eventually(lambda: wire.sent > wire.most - (1 << 17))
    process.kill()
    process.wait()
    wire.cut()
    wire.most = None


def test_an_interrupted_upload_resumes(bucket: str, wire, tmp_path: Path, eventually: Callable[..., None]) -> None:
    parts = 8
    file = tmp_path / "file"
    file.write_bytes(os.urandom(parts * PART_BYTES))
    _cut_off(bucket, wire, file, eventually)
    store = open_store(bucket)
    assert list(store.unfinished("")) == ["big"]
    assert store.get("big") is None

    wire.sent = 0
    store.upload("big", file)

    assert wire.sent < (parts - 1) * PART_BYTES + (1 << 20), "complete parts were sent again"
    assert store.list().objects["big"].tag == store.tag(file)
    store.download("big", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == file.read_bytes()
    assert not list(store.unfinished(""))


def test_an_upload_of_other_bytes_does_not_mix_with_an_interrupted_one(
    bucket: str, wire, tmp_path: Path, eventually: Callable[..., None]
) -> None:
    file = tmp_path / "file"
    file.write_bytes(os.urandom(6 * PART_BYTES))
    _cut_off(bucket, wire, file, eventually)

    file.write_bytes(os.urandom(3 * PART_BYTES))
    store = open_store(bucket)
    store.upload("big", file)

    assert store.list().objects["big"].tag == store.tag(file)


def test_an_upload_can_be_aborted(bucket: str, wire, tmp_path: Path, eventually: Callable[..., None]) -> None:
    file = tmp_path / "file"
    file.write_bytes(os.urandom(6 * PART_BYTES))
    _cut_off(bucket, wire, file, eventually)
    store = open_store(bucket)
    store.abandon("big")
    assert not list(store.unfinished(""))


def test_a_missing_bucket_is_named(bucket: str) -> None:
    url = f"{bucket[:5]}no-such-bucket-anywhere/runs"
    for act in (lambda s: s.list(), lambda s: s.put("a", b""), lambda s: s.folders()):
        with pytest.raises(StoreError, match="there is no bucket 'no-such-bucket-anywhere'"):
            act(open_store(url))


def test_an_unreachable_store_is_reported(bucket: str, wire) -> None:
    store = open_store(bucket)
    wire.take_down()
    with pytest.raises(StoreError, match=f"{bucket} cannot be reached"):
        store.list()
    wire.mend()
    assert not store.list().objects


def test_a_request_without_an_answer_is_not_repeated(gs: str, gs_wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try takes a read timeout of a minute."""
    monkeypatch.setattr("stoker.storage.gcs.TIMEOUT_S", (1, 1))
    monkeypatch.setattr("stoker.storage.gcs.RETRY_FOR_S", 0.5)
    store = open_store(gs)
    gs_wire.most = gs_wire.sent
    started = time.monotonic()
    with pytest.raises(StoreError, match=f"{gs} cannot be reached"):
        store.list()
    assert time.monotonic() - started < 3


def test_an_object_that_was_deleted_before_its_download_is_named(bucket: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="some/runs/old was deleted since it was listed"):
        open_store(bucket).download("old", tmp_path / "old")
    assert not list(tmp_path.glob("*old*"))


@pytest.mark.usefixtures("nowhere")
def test_a_download_that_is_cut_off_each_time_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    headers = {"Content-Length": "1000", "ETag": '"tag"', "Last-Modified": "Mon, 16 Nov 2026 18:00:00 GMT"}
    with answers(lambda *_: (200, headers, b"only a part")) as host:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}")
        with pytest.raises(StoreError, match="s3://bucket/runs cannot be reached"):
            open_store("s3://bucket/runs").download("key", tmp_path / "file")
    assert not (tmp_path / "file").exists()


@pytest.mark.usefixtures("nowhere")
def test_a_server_that_is_no_store_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with answers(lambda *_: (200, {}, b"<html>Please log in</html>")) as host:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://{host}")
        store = open_store("gs://bucket/runs")
        for act in (store.list, store.folders, lambda: store.look("a")):
            with pytest.raises(StoreError, match="gs://bucket/runs cannot be reached"):
                act()


@pytest.mark.usefixtures("nowhere")
def test_an_upload_that_makes_no_progress_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(PART_BYTES + 1))

    def keep_nothing(method: str, _: str, headers: Message) -> Answer:
        """A session that accepts parts and stores none of them."""
        session = {"Location": f"http://{headers['Host']}/session"}
        return (200, session, b"{}") if method == "POST" else (308, {}, b"")

    with answers(keep_nothing) as host:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://{host}")
        store = open_store("gs://bucket/runs")
        with pytest.raises(StoreError, match="it has kept nothing of big after byte 0"):
            store.upload("big", file)
        assert list(store.unfinished("")) == ["big"]  # the next try resumes it


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_without_permission_the_remedy_names_it(monkeypatch: pytest.MonkeyPatch, forbidding: str, scheme: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", forbidding)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", forbidding)
    store = open_store(f"{scheme}://bucket/runs")
    for act in (lambda: store.list(), lambda: store.put("a", b"b"), lambda: store.delete(["a"])):
        with pytest.raises(StoreError, match=f"no permission for {scheme}://bucket/runs") as caught:
            act()
        assert caught.value.remedy


@pytest.mark.usefixtures("nowhere")
def test_without_credentials_the_remedy_says_how_to_get_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(StoreError, match="no AWS credentials") as caught:
        open_store("s3://bucket/runs").list()
    assert "AWS_PROFILE" in caught.value.remedy
    with pytest.raises(StoreError, match="no Google credentials") as caught:
        open_store("gs://bucket/runs")
    assert "gcloud auth" in caught.value.remedy


@pytest.mark.parametrize("url", ["hdfs://name/runs", "s3://", "s3:///runs", "gs://bucket/a/../b", "s3://bucket/a//b"])
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(UserError):
        split(url)


@pytest.mark.usefixtures("nowhere")
def test_the_cache_is_private() -> None:
    assert cache().stat().st_mode & 0o077 == 0
