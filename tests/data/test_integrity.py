"""A prepared set is compared with its hashes: all of it, each shard as it is read, or beside a run that trains."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from stoker.data.integrity import BackgroundCheck, SetFile
from stoker.data.sets import open_set, set_of
from stoker.data.shards import TokenSet
from stoker.spec.data import Data, MixturePart
from stoker.spec.errors import UserError
from tests.flip import flip


@pytest.fixture
def copied(tokens: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tokens, tmp_path / "set"))


def shard_of(files: list[SetFile], name: str) -> Path:
    return next(file.path for file in files if file.file.startswith(name))


@pytest.mark.parametrize("split", ["train", "validation"])
def test_one_flipped_bit_is_found_and_the_shard_is_named(copied: Path, split: str) -> None:
    token_set = TokenSet.open(copied)
    check = BackgroundCheck(token_set.files)
    check.first.result()
    assert check.problem is None
    shard = shard_of(token_set.files(), split)
    flip(shard)
    check.look().result()
    assert check.problem is not None
    assert str(shard) in check.problem.problem
    assert f"Restore that file, or delete {copied}" in check.problem.remedy


def test_only_changed_files_are_read_again(copied: Path) -> None:
    token_set = TokenSet.open(copied)
    check = BackgroundCheck(token_set.files)
    check.first.result()
    shard = shard_of(token_set.files(), "train")
    before = shard.stat()
    flip(shard)
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
    check.look().result()
    assert check.problem is None, "a second look costs no more than asking for the times of the files"
    os.utime(shard)
    check.look().result()
    assert check.problem is not None


def test_a_file_that_is_gone_is_a_changed_one(copied: Path) -> None:
    token_set = TokenSet.open(copied)
    shard = shard_of(token_set.files(), "train")
    shard.unlink()
    check = BackgroundCheck(token_set.files)
    check.first.result()
    assert check.problem is not None
    assert "cannot be read: No such file" in check.problem.problem


def test_a_closed_check_ends_without_a_result(copied: Path) -> None:
    token_set = TokenSet.open(copied)
    flip(shard_of(token_set.files(), "train"))
    files: list[SetFile] = []
    check = BackgroundCheck(lambda: files)
    check.close()
    files += token_set.files()
    check.look().result()
    assert check.problem is None


def test_every_part_of_a_mixture_is_read(copied: Path, tokens: Path, tmp_path: Path) -> None:
    parts = [MixturePart(path=str(copied), weight=1), MixturePart(path=str(tokens), weight=1)]
    mixed = set_of(Data(mix=parts), tmp_path / "store")
    assert len(mixed.files()) == len(TokenSet.open(copied).files()) + len(TokenSet.open(tokens).files())
    mixed.verify()
    shard = shard_of(mixed.files(), "train")
    flip(shard)
    with pytest.raises(UserError, match="is damaged"):
        mixed.verify()


def test_the_tokenizer_of_sentence_pairs_counts_too(pairs: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(pairs, tmp_path / "pairs"))
    pair_set = open_set(copied)
    pair_set.verify()
    (copied / "tokenizer" / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer\.json is damaged"):
        pair_set.verify()


@pytest.mark.parametrize("kind", ["tokens", "pairs"])
def test_a_reader_that_asks_for_it_gets_no_token_of_a_changed_shard(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    copied = Path(shutil.copytree(request.getfixturevalue(kind), tmp_path / "set"))
    prepared = open_set(copied)
    prepared.train.check_when_read()
    flip(shard_of(prepared.files(), "train"))
    length = prepared.index.length if kind == "pairs" else 32
    with pytest.raises(UserError, match="is damaged"):
        prepared.train.read(np.arange(prepared.train.samples(length)), length)
