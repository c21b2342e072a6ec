import json
import os
from pathlib import Path

import numpy as np
import pytest

from stoker.data.order import Shuffled, batch
from stoker.data.shards import INDEX_FILE, Index, Shard, TokenSet
from stoker.spec.errors import UserError


def write_set(folder: Path, sizes: list[int], *, dtype: str = "uint16", fill: bool = True) -> np.ndarray:
    """A token set of the numbers 0, 1, 2, … over shards of these sizes; without `fill`, holes of that size."""
    folder.mkdir(exist_ok=True)
    stream = np.arange(sum(sizes) if fill else 0).astype(dtype)
    shards, start = [], 0
    for number, size in enumerate(sizes):
        path = folder / f"train-{number:05d}.bin"
        if fill:
            stream[start : start + size].tofile(path)
        else:
            path.touch()
            os.truncate(path, size * np.dtype(dtype).itemsize)
        shards.append(Shard(file=path.name, tokens=size, sha256="?"))
        start += size
    facts = {"vocab": 9, "end": 0, "tokenizer": "", "trained": None, "documents": 1, "bytes": 1, "skipped": 0}
    Index(key="k", dtype=dtype, train=shards, **facts).write(folder)  # type: ignore[arg-type]
    return stream


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_samples_are_the_stream_cut_evenly_whatever_the_shards(tmp_path: Path, dtype: str) -> None:
    stream = write_set(tmp_path, [1, 70, 3, 2, 200, 50_000, 1], dtype=dtype)
    train = TokenSet.open(tmp_path).train
    assert train.tokens == len(stream)
    for length in (1, 7, 100, 50_000):
        samples = train.samples(length)
        assert samples == (len(stream) - 1) // length
        ids = np.random.default_rng(0).permutation(samples)[:500]
        rows = train.read(ids, length)
        assert rows.dtype == np.int64
        assert np.array_equal(rows, [stream[i * length : i * length + length + 1] for i in ids])


def test_no_samples_are_read_as_no_rows(tmp_path: Path) -> None:
    write_set(tmp_path, [10])
    tokens = TokenSet.open(tmp_path)
    assert tokens.train.read(np.empty(0, np.int64), 4).shape == (0, 5)
    assert tokens.validation.tokens == tokens.validation.samples(4) == 0
    assert tokens.train.samples(10) == 0


@pytest.mark.parametrize("id", [-1, 3])
def test_a_sample_that_does_not_exist_is_never_read(tmp_path: Path, id: int) -> None:
    write_set(tmp_path, [10])
    with pytest.raises(IndexError):
        TokenSet.open(tmp_path).train.read(np.array([id]), 3)


def test_any_step_of_a_billion_tokens_is_found_without_reading_the_rest(tmp_path: Path) -> None:
    write_set(tmp_path, [1_000_000] * 1024, fill=False)
    with open(tmp_path / "train-00777.bin", "r+b") as file:
        np.full(1_000_000, 777, "<u2").tofile(file)
    tokens = TokenSet.open(tmp_path)
    samples = tokens.train.samples(1024)
    ids = batch(Shuffled(1, samples), sequences=512, step=123_456).ids
    rows = tokens.train.read(ids, 1024)
    in_777 = ids * 1024 // 1_000_000 == 777
    assert np.array_equal(rows[:, 0] == 777, in_777)
    assert len(os.listdir("/proc/self/fd")) < 300  # the maps of a thousand shards are not all held open


def test_a_folder_without_an_index_says_that_prepare_was_interrupted(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no index\.json") as error:
        TokenSet.open(tmp_path)
    assert "run it again" in error.value.remedy


def test_a_shard_of_the_wrong_size_or_gone_is_refused(tmp_path: Path) -> None:
    write_set(tmp_path, [10, 10])
    os.truncate(tmp_path / "train-00001.bin", 18)
    with pytest.raises(UserError, match=r"train-00001\.bin has 18 bytes instead of 20"):
        TokenSet.open(tmp_path)
    (tmp_path / "train-00001.bin").unlink()
    with pytest.raises(UserError, match=r"train-00001\.bin is missing"):
        TokenSet.open(tmp_path)


def test_an_index_of_another_version_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    write_set(tmp_path, [10])
    index = json.loads((tmp_path / INDEX_FILE).read_text())
    (tmp_path / INDEX_FILE).write_text(json.dumps(index | {"version": 99}))
    with pytest.raises(UserError, match="version 99"):
        TokenSet.open(tmp_path)
    (tmp_path / INDEX_FILE).write_text("{")
    with pytest.raises(UserError, match="damaged"):
        TokenSet.open(tmp_path)
