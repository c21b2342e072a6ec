"""Pairs of sentences by the recipe, the same however they are made."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from stoker.data.any_set import open_prepared
from stoker.data.bert.pairing import SentenceDocument, pairs
from stoker.data.bert.pairs import KIND, Pairs, PairSet, fields
from stoker.data.prepare import prepare
from stoker.data.shards import TokenSet
from stoker.data.tokenizer import load_folder
from stoker.spec.data import Data
from stoker.spec.errors import UserError


def documents(number: int, sentences: int, length: int) -> list[SentenceDocument]:
    """A token says its document, its sentence and its place."""
    made = []
    for document in range(number):
        tokens = [document * 10_000 + sentence * 10 + at for sentence in range(sentences) for at in range(length)]
        made.append(SentenceDocument(np.array(tokens), np.arange(sentences + 1) * length))
    return made


def test_the_second_sentence_follows_in_half_of_them_and_else_is_of_another_document() -> None:
    made = list(pairs(documents(20, 200, 5), 64, random.Random(1)))
    assert len(made) > 400
    assert 0.4 < np.mean([pair.random for pair in made]) < 0.6
    for pair in made:
        assert len(pair.first) + len(pair.second) <= 61
        assert min(len(pair.first), len(pair.second)) > 0
        apart = pair.second[0] // 10_000 != pair.first[0] // 10_000
        assert apart == pair.random
        if not pair.random:
            after = pair.second[0] // 10 - pair.first[-1] // 10
            assert after in (0, 1) or len(pair.first) + len(pair.second) == 61  # tokens may be cut off in between


def test_most_fill_their_record_and_some_are_short() -> None:
    lengths = np.array([len(p.first) + len(p.second) for p in pairs(documents(20, 200, 5), 64, random.Random(2))])
    assert 0.75 < (lengths >= 57).mean() < 0.97
    assert (lengths < 30).any()


def test_every_sentence_is_used() -> None:
    made = pairs(documents(3, 100, 3), 32, random.Random(3))
    seen = {int(token) // 10 for pair in made for token in (*pair.first, *([] if pair.random else pair.second))}
    assert len(seen) >= 0.97 * 300


@pytest.mark.parametrize(("number", "sentences", "pairs_of_each"), [(2, 1, 1), (1, 2, 1), (1, 1, 0)])
def test_a_unit_of_little_text_loses_none_of_it(number: int, sentences: int, pairs_of_each: int) -> None:
    for seed in range(2000):
        made = list(pairs(documents(number, sentences, 5), 32, random.Random(seed)))
        assert len(made) >= number * pairs_of_each, f"seed {seed}"
        for pair in made:
            assert pair.second[0] // 10 != pair.first[0] // 10


def test_a_single_document_is_paired_with_other_places_of_itself() -> None:
    made = list(pairs(documents(1, 100, 5), 32, random.Random(4)))
    assert {pair.random for pair in made} == {True, False}
    for pair in made:
        if pair.random:
            assert pair.second[0] // 10 - pair.first[-1] // 10 != 1


def test_one_sentence_alone_gives_no_pair() -> None:
    assert list(pairs(documents(1, 1, 5), 32, random.Random(5))) == []


def texts(folder: Path, number: int) -> Path:
    """Files of a unit each: more than a mebibyte."""
    chance = random.Random(6)
    words = ["stoker", "fire", "coal", "engine", "grate", "boiler", "feeds", "warms"]
    folder.mkdir()
    for file in range(number):
        lines = [" ".join(f"{' '.join(chance.choices(words, k=6))}." for _ in range(40)) for _ in range(740)]
        (folder / f"{file}.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    return folder


def files(folder: Path) -> dict[str, bytes]:
    shards = {path.name: path.read_bytes() for path in folder.glob("*.bin")}
    return shards | {"index": (folder / "index.json").read_bytes()}


@pytest.mark.slow
@pytest.mark.parametrize(("number", "workers"), [(2, 1), pytest.param(5, 2, marks=pytest.mark.soak)])
def test_any_interruption_and_any_number_of_processes_give_the_same_bytes(
    pairs: Path, tmp_path: Path, number: int, workers: int
) -> None:
    class Enough(Exception):
        pass

    def stop(progress) -> None:
        if progress.phase == "tokens" and progress.done > 0.7 * progress.total:
            raise Enough

    folder = str(texts(tmp_path / "texts", number))
    data, settings = Data(path=folder, tokenizer=str(pairs / "tokenizer"), validation=0.1), Pairs(length=64)
    with pytest.raises(Enough):
        prepare(data, tmp_path / "resumed", pairs=settings, workers=workers, progress=stop)
    assert list((tmp_path / "resumed").glob("train-*.bin"))
    with pytest.raises(UserError, match="is not a complete token set"):
        open_prepared(tmp_path / "resumed")
    made = prepare(data, tmp_path / "resumed", pairs=settings, workers=workers)
    prepare(data, tmp_path / "whole", pairs=settings, workers=1)
    assert len(made.index.train) == number
    assert files(tmp_path / "resumed") == files(tmp_path / "whole")
    made.verify()


def test_records_are_what_the_model_reads(pairs: Path) -> None:
    prepared = open_prepared(pairs)
    assert isinstance(prepared, PairSet)
    tokenizer = load_folder(prepared.tokenizer).tokenizer
    rows = fields(prepared.train.read(np.arange(prepared.train.records), 32), 32)
    assert (rows.tokens_NL[:, 0] == tokenizer.token_to_id("[CLS]")).all()
    assert ((rows.tokens_NL == tokenizer.token_to_id("[SEP]")).sum(axis=1) == 2).all()
    assert (rows.tokens_NL[np.arange(len(rows.real_N)), rows.real_N - 1] == tokenizer.token_to_id("[SEP]")).all()
    assert (rows.tokens_NL[np.arange(len(rows.real_N)), rows.second_N - 1] == tokenizer.token_to_id("[SEP]")).all()
    assert not (rows.tokens_NL * (np.arange(32) >= rows.real_N[:, None])).any()
    assert prepared.train.tokens == rows.real_N.sum()
    share = prepared.validation.records / (prepared.validation.records + prepared.train.records)
    assert share == pytest.approx(0.05, abs=0.01)


def test_text_from_elsewhere_gives_the_pairs_of_the_same_text_here(
    hub, books: Path, pairs: Path, tmp_path: Path
) -> None:
    server = hub(fail_every=3)
    for book in sorted(books.iterdir()):
        server.write(f"datasets/owner/name/{book.name}", book.read_bytes())
    data = Data(path="hf://datasets/owner/name", tokenizer=str(pairs / "tokenizer"), validation=0.05)
    remote = prepare(data, tmp_path / "there", pairs=Pairs(length=32), workers=1)
    assert [shard.sha256 for shard in remote.index.train] == [
        shard.sha256 for shard in open_prepared(pairs).index.train
    ]
    assert not (tmp_path / "there" / ".fetched").exists()


def test_a_set_reports_its_kind_its_length_and_missing_files(pairs: Path, tokens: Path, tmp_path: Path) -> None:
    prepared = open_prepared(pairs)
    assert json.loads((pairs / "index.json").read_text())["kind"] == KIND
    assert isinstance(open_prepared(tokens), TokenSet)
    with pytest.raises(UserError, match=r"pairs of 32 tokens, not of 64.*Set batch\.length to 32"):
        prepared.train.samples(64)
    with pytest.raises(IndexError):
        prepared.train.read(np.array([prepared.train.records]), 32)
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "index.json").write_bytes((pairs / "index.json").read_bytes())
    with pytest.raises(UserError, match=r"train-00000\.bin is missing"):
        open_prepared(copy)


@pytest.mark.parametrize(
    "change",
    [
        {"train": None},
        {"train": [{"file": "../../secret", "records": 1, "tokens": 1, "sha256": ""}]},
        {"train": [{"file": "train-00000.bin"}]},
        {"length": -3},
        {"predictions": "many"},
    ],
)
def test_a_damaged_index_is_reported(pairs: Path, tmp_path: Path, change: dict[str, object]) -> None:
    index = json.loads((pairs / "index.json").read_text())
    (tmp_path / "index.json").write_text(json.dumps(index | change))
    with pytest.raises(UserError, match=r"index\.json is damaged"):
        open_prepared(tmp_path)


def test_a_tokenizer_that_cannot_mask_is_refused_before_anything_is_made(
    tokens: Path, books: Path, tmp_path: Path
) -> None:
    data = Data(path=str(books), tokenizer=str(tokens / "tokenizer"))
    with pytest.raises(UserError, match=r"has no \[PAD\], \[CLS\], \[SEP\], \[MASK\]"):
        prepare(data, tmp_path / "out", pairs=Pairs(length=32))
