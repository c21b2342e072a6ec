"""Both kinds of store, in the same words: what a Store promises."""

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from stoker.spec.errors import UserError
from stoker.storage.store import PART_BYTES, StoreError, cache, open_store, split

UPLOAD = "import sys; from pathlib import Path; from stoker.storage.store import open_store; " + (
    "open_store(sys.argv[1]).upload('big', Path(sys.argv[2]))"
)


def test_objects_are_put_listed_read_and_deleted(bucket: str) -> None:
    store = open_store(bucket)
    store.put("one/a", b"first")
    store.put("one/b c+ü", b"second")
    store.put("two/a", b"")

    listing = store.list("one/")

    assert {key: found.size for key, found in listing.objects.items()} == {"one/a": 5, "one/b c+ü": 6}
    assert abs(listing.now - listing.objects["one/a"].modified) < timedelta(minutes=5)
    assert sorted(store.folders()) == ["one", "two"]
    assert (store.get("one/b c+ü"), store.get("two/a"), store.get("three")) == (b"second", b"", None)
    store.delete(["one/a", "one/never"])
    assert list(store.list().objects) == ["one/b c+ü", "two/a"]


@pytest.mark.parametrize(
    ("bucket", "every"), [("s3", 6), pytest.param("gs", 1, marks=pytest.mark.soak)], indirect=["bucket"]
)
def test_of_many_objects_all_are_listed_and_deleted(bucket: str, every: int) -> None:
    """More than one answer lists, and more than one request deletes: of S3 100 here, and 1000."""
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

    found = store.list().objects["file"]
    assert (found.size, found.tag) == (size, store.tag(file))
    store.download("file", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == file.read_bytes()
    assert not list(store.unfinished(""))


def _cut_off(bucket: str, wire, file: Path, eventually: Callable[..., None]) -> None:
    """A machine dies while it sends: four parts are on their way at once, and at least one is up."""
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

    assert wire.sent < (parts - 1) * PART_BYTES + (1 << 20), "what had been sent was sent again"
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


def test_an_upload_can_be_given_up(bucket: str, wire, tmp_path: Path, eventually: Callable[..., None]) -> None:
    file = tmp_path / "file"
    file.write_bytes(os.urandom(6 * PART_BYTES))
    _cut_off(bucket, wire, file, eventually)
    store = open_store(bucket)
    store.abandon("big")
    assert not list(store.unfinished(""))


def test_a_bucket_that_is_not_there_is_named(bucket: str) -> None:
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
def test_a_url_that_means_nothing_is_refused(url: str) -> None:
    with pytest.raises(UserError):
        split(url)


@pytest.mark.usefixtures("nowhere")
def test_the_cache_is_private() -> None:
    assert cache().stat().st_mode & 0o077 == 0
