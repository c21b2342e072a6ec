"""Text in a bucket as data: found by prefix or glob, fetched file by file, checked for changes."""

import json
from pathlib import Path

import numpy as np
import pytest

from stoker.data.prepare import prepared
from stoker.data.remote import fetch, find, kept_in
from stoker.data.sets import open_set, set_of
from stoker.data.stream.feeder import feeder_of
from stoker.spec.data import Data, TrainTokenizer
from stoker.spec.errors import UserError
from stoker.storage.store import open_store
from stoker.train.batches import Batches

TEXT = "the stoker feeds the fire, line after line\n" * 4000


def data(path: str) -> Data:
    return Data(path=path, tokenizer=TrainTokenizer(train=300), validation=0.0)


def fill(bucket: str) -> None:
    store = open_store(bucket)
    store.put("books/a.txt", TEXT.encode())
    store.put("books/b.jsonl", b'{"text": "a line of JSON"}\n' * 40)
    store.put("books/deep/c.txt", b"deep text\n" * 40)
    store.put("books/.hidden", b"no")
    store.put("books/empty.txt", b"")
    store.put("bookshelf.txt", b"another thing")


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("books", ["a.txt", "b.jsonl", "deep/c.txt"]),
        ("books/", ["a.txt", "b.jsonl", "deep/c.txt"]),
        ("books/*.txt", ["a.txt"]),
        ("books/**/*.txt", ["a.txt", "deep/c.txt"]),
        ("b*/deep", ["books/deep/c.txt"]),
        ("books/deep/c.txt", ["c.txt"]),
    ],
)
def test_a_prefix_a_glob_or_a_key_finds_its_objects(bucket: str, path: str, names: list[str]) -> None:
    fill(bucket)
    files = find(f"{bucket}/{path}")
    assert [file.name for file in files] == names
    assert all(file.url and file.url.startswith(bucket) and file.sha256 for file in files)


def test_the_tokens_are_those_of_the_same_files_here(bucket: str, tmp_path: Path) -> None:
    fill(bucket)
    remote = prepared(data(f"{bucket}/books/*"), tmp_path / "store", workers=1)
    for name, text in (
        ("a.txt", TEXT),
        ("b.jsonl", '{"text": "a line of JSON"}\n' * 40),
        ("deep/c.txt", "deep text\n" * 40),
    ):
        (tmp_path / "here" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "here" / name).write_text(text)
    local = prepared(data(str(tmp_path / "here")), tmp_path / "other", workers=1)
    ids = np.arange(remote.train.samples(16))
    assert np.array_equal(remote.train.read(ids, 16), local.train.read(ids, 16))
    assert not (remote.path / ".fetched").exists()
    assert prepared(data(f"{bucket}/books/*"), tmp_path / "store").path == remote.path
    open_store(bucket).put("books/a.txt", TEXT.upper().encode())
    assert prepared(data(f"{bucket}/books/*"), tmp_path / "store").key != remote.key


def test_a_broken_connection_is_resumed(bucket: str, wire, tmp_path: Path) -> None:
    content = np.random.default_rng(1).bytes(6 << 20)
    open_store(bucket).put("large.bin", content)
    (file,) = find(f"{bucket}/large.bin")
    file = kept_in(file, tmp_path)
    arrived = []
    for size in fetch(file):
        arrived.append(size)
        if len(arrived) == 3:
            wire.cut()
    assert file.path.read_bytes() == content
    assert sum(arrived) == len(content)


def test_a_missing_or_forbidden_bucket_is_one_line_and_a_remedy(
    bucket: str, forbidding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(bucket)
    with pytest.raises(UserError, match="no text in"):
        find(f"{bucket}/nowhere")
    scheme = bucket.partition("://")[0]
    with pytest.raises(UserError, match="there is no bucket 'stoker-no-such-bucket'"):
        find(f"{scheme}://stoker-no-such-bucket/books")
    monkeypatch.setenv("AWS_ENDPOINT_URL" if scheme == "s3" else "STORAGE_EMULATOR_HOST", forbidding)
    with pytest.raises(UserError, match="no permission"):
        find(f"{bucket}/books")


def test_an_object_that_changes_after_it_was_listed_is_refused(bucket: str, tmp_path: Path) -> None:
    fill(bucket)
    (file,) = find(f"{bucket}/books/a.txt")
    open_store(bucket).put("books/a.txt", TEXT.upper().encode())
    with pytest.raises(UserError, match="changed since it was listed"):
        list(fetch(kept_in(file, tmp_path)))


def test_of_a_stream_from_a_bucket_no_sample_is_seen_twice(s3: str, tmp_path: Path) -> None:
    store = open_store(s3)
    for number in range(8):
        lines = (json.dumps({"text": f"line {line} of file {number} in a bucket"}) + "\n" for line in range(150))
        store.put(f"lines/{number}.jsonl", "".join(lines).encode())
    spec = data(f"{s3}/lines").model_copy(update={"stream": True, "window": 2000})
    tokens = set_of(spec, tmp_path / "store")
    feeder = feeder_of(tokens)
    assert feeder is not None, "most of it is still to come"
    settings = {"seed": 3, "sequences": 12, "length": 32, "rows": 12, "positions": None, "since": (0, 0)}
    splits = [tokens.train, open_set(tokens.path).train]
    ranks = [Batches(split, part=part, parts=2, **settings) for part, split in enumerate(splits)]
    shares = [batches.get(step) for step in range(1, 31) for batches in ranks]
    samples = [id for batch in shares if batch for id in batch.samples.tolist()]
    for batches in ranks:
        batches.close()
    feeder.close()
    assert len(set(samples)) == len(samples) == 30 * 12
