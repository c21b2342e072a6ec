"""Several texts, one tokenizer, and every sample where its number says."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from stoker.data.mixture import Mixture
from stoker.data.prepare import prepare
from stoker.data.sets import open_set, set_of
from stoker.spec.data import Data, MixturePart, TrainTokenizer
from stoker.spec.errors import UserError


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("alpha beta gamma delta\n" * 300)
    (folder / "b.jsonl").write_text("".join(json.dumps({"body": f"number {i}"}) + "\n" for i in range(200)))
    return folder


def mix(texts: Path, *weights: float, **settings: object) -> Data:
    first, second = weights or (0.7, 0.3)
    parts = [
        MixturePart(path=str(texts / "a.txt"), weight=first),
        MixturePart(path=str(texts / "b.jsonl"), weight=second, field="body"),
    ]
    return Data(mix=parts, **{"tokenizer": TrainTokenizer(train=300), "validation": 0.05, **settings})  # type: ignore[arg-type]


def test_parts_are_sets_of_their_own_with_one_tokenizer_trained_on_all(texts: Path, tmp_path: Path) -> None:
    tokens = set_of(mix(texts), tmp_path / "store")
    assert isinstance(tokens, Mixture)
    assert {source.tokens.index.tokenizer for source in tokens.sources} == {tokens.index.tokenizer}
    vocabulary = json.loads((tokens.tokenizer / "tokenizer.json").read_text())["model"]["vocab"]
    assert any("alpha".startswith(token) and len(token) > 2 for token in vocabulary)
    assert any("number".startswith(token) and len(token) > 2 for token in vocabulary)
    assert tokens.train.samples(8) == sum(source.tokens.train.samples(8) for source in tokens.sources)
    assert tokens.validation.tokens == sum(source.tokens.validation.tokens for source in tokens.sources) > 0


def test_a_sample_is_the_one_of_its_source(texts: Path, tmp_path: Path) -> None:
    tokens = set_of(mix(texts), tmp_path / "store")
    assert isinstance(tokens, Mixture)
    drawn = tokens.train.order(3, 8).draw(0, 500)
    rows = tokens.train.read(drawn.ids, 8)
    for id, row in zip(drawn.ids.tolist(), rows, strict=True):
        source, number = tokens.source_of(id, 8)
        assert np.array_equal(source.tokens.train.read(np.array([number]), 8)[0], row)


def test_the_same_mixture_is_made_once_and_other_weights_are_another(texts: Path, tmp_path: Path) -> None:
    first = set_of(mix(texts), tmp_path / "store")
    assert set_of(mix(texts, 7, 3), tmp_path / "store").key == first.key, "what counts is the share"
    assert set_of(mix(texts, 0.6, 0.4), tmp_path / "store").key != first.key
    with open(texts / "a.txt", "a") as file:
        file.write("more\n")
    assert set_of(mix(texts), tmp_path / "store").key != first.key


def test_a_store_can_be_moved(texts: Path, tmp_path: Path) -> None:
    first = set_of(mix(texts), tmp_path / "store")
    shutil.move(tmp_path / "store", tmp_path / "elsewhere")
    moved = open_set(tmp_path / "elsewhere" / first.path.name)
    assert moved.key == first.key
    assert moved.train.tokens == first.train.tokens


@pytest.mark.parametrize("text", ["[]", '{"key": "x"}', "[" * 10_000, '{"version": 1, "key": "x", "sources": [{}]}'])
def test_a_damaged_mixture_is_named(texts: Path, tmp_path: Path, text: str) -> None:
    folder = set_of(mix(texts), tmp_path / "store").path
    (folder / "mix.json").write_text(text)
    with pytest.raises(UserError, match=r"mix\.json is missing or damaged"):
        open_set(folder)


def test_a_prepared_part_sets_the_tokenizer(texts: Path, tmp_path: Path) -> None:
    data = Data(path=str(texts / "a.txt"), tokenizer=TrainTokenizer(train=300))
    made = prepare(data, tmp_path / "made")
    parts = [
        MixturePart(path=str(made.path), weight=1),
        MixturePart(path=str(texts / "b.jsonl"), weight=1, field="body"),
    ]
    tokens = set_of(Data(mix=parts), tmp_path / "store")
    assert isinstance(tokens, Mixture)
    assert tokens.sources[0].tokens.path == made.path or tokens.sources[0].tokens.key == made.key
    with pytest.raises(UserError, match="has a tokenizer of its own"):
        set_of(Data(mix=parts, tokenizer=TrainTokenizer(train=400)), tmp_path / "store")


def test_a_part_of_sentence_pairs_is_refused(texts: Path, pairs: Path, tmp_path: Path) -> None:
    parts = [MixturePart(path=str(pairs), weight=1), MixturePart(path=str(texts / "a.txt"), weight=1)]
    with pytest.raises(UserError, match="holds sentence pairs"):
        set_of(Data(mix=parts), tmp_path / "store")
