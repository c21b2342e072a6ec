"""Any token of a set leads back to its document: file, place and text, whatever the format."""

import csv
import gzip
import io
import json
import os
import random
import shutil
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker.data.passages import Passage, Passages
from stoker.data.prepare import prepare
from stoker.data.provenance import CHARACTERS_PER_MARK, ProvenancePart, read
from stoker.data.shards import TokenSet
from stoker.spec.data import Data, TrainTokenizer

WORDS = ["stoker", "feeds", "the", "fire", "Grüße", "漢字", "don't", "\n", "\r\n", "  ", "end.", "<|endoftext|>"]


def prose(size: int, seed: int) -> str:
    draw = random.Random(seed)
    return " ".join(draw.choices(WORDS, k=size // 6)) + f" (text {seed})"


def write_every_format(folder: Path) -> None:
    folder.mkdir()
    texts = [prose(draw, seed) for seed, draw in enumerate([40, 3000, 12, 150_000, 800, 90])]
    lines = [json.dumps({"text": text}) for text in texts]
    (folder / "a.txt").write_bytes(b"\xef\xbb\xbf" + prose(2_200_000, 100).encode())  # several units, a byte order mark
    (folder / "b.txt.gz").write_bytes(gzip.compress(prose(300_000, 101).encode()))
    (folder / "c.jsonl").write_text("\n\n".join([*lines, '{"text": ""}', *lines]) + "\n")
    (folder / "d.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    (folder / "e.json").write_text(json.dumps({"about": 1, "data": [{"text": text} for text in texts]}))
    rows = io.StringIO()
    csv.writer(rows).writerows([["id", "text"], *([i, text] for i, text in enumerate(texts))])
    (folder / "f.csv").write_bytes(rows.getvalue().encode())
    pq.write_table(pa.table({"text": texts * 2}), folder / "g.parquet", row_group_size=5)
    large = [prose(700, seed) for seed in range(200, 3400)]
    (folder / "h.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in large))  # several spans


@lru_cache
def unpacked(file: str) -> bytes:
    content = Path(file).read_bytes()
    return gzip.decompress(content) if file.endswith(".gz") else content


def document(passage: Passage) -> str:
    """The text from the passage's place on, found by other code than that under test."""
    assert passage.file is not None
    assert passage.place is not None
    path, content = Path(passage.file), unpacked(passage.file)
    if passage.counts == "byte":
        return content[passage.place :].decode()
    if passage.counts == "row":
        text = pq.read_table(path).column("text")[passage.place - 1].as_py()
    elif passage.counts == "record":
        text = json.loads(content)["data"][passage.place - 1]["text"]
    elif path.suffix == ".csv":
        physical = content.decode().splitlines(keepends=True)
        text = next(csv.reader("".join(physical[passage.place - 1 :]).splitlines(keepends=True)))[1]
    else:
        text = json.loads(content.split(b"\n")[passage.place - 1])["text"]
    return str(text)[passage.character :]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> TokenSet:
    folder = tmp_path_factory.mktemp("provenance")
    write_every_format(folder / "data")
    return prepare(Data(path=str(folder / "data"), tokenizer=TrainTokenizer(train=300)), folder / "set", workers=1)


def starts(made: TokenSet, draw: random.Random) -> list[int]:
    """A token of each part of each file, and the last few of each shard."""
    tokens, first = [], 0
    for shard in made.index.train:
        origin = read(made.path, shard)
        assert origin is not None
        begins = first
        for part in origin.parts:
            tokens += [begins, begins + draw.randrange(part.tokens)]
            begins += part.tokens
        first += shard.tokens
        tokens = [*(start for start in tokens if start < first), first - draw.randrange(1, 100)]
    return tokens


@pytest.mark.slow
def test_every_stretch_of_tokens_is_found_in_its_documents(made: TokenSet) -> None:
    seed = random.randrange(10**9)
    print(f"{seed=}")
    draw, passages = random.Random(seed), Passages(made, [])
    formats = set()
    for start in starts(made, draw) * 3:
        length = min(draw.choice([1, 17, 200, 3000]), made.train.tokens - start)
        matches = passages.of(start, start + length)
        assert sum(passage.tokens for passage in matches) == length
        for passage in matches:
            assert passage.problem is None
            formats.add((Path(passage.file or "").suffix, passage.counts))
            text = document(passage)
            complete = passage.text.strip("\ufffd")  # a stretch may begin or end inside a character
            assert complete in text[: len(passage.text) + 1]
            if passage.text == complete:
                assert text.startswith(complete)
            if passage.ends:
                assert text.endswith(complete)
                assert passage.counts == "byte" or len(text) <= len(passage.text) + 1
    assert formats == {
        (".txt", "byte"), (".gz", "byte"), (".jsonl", "line"), (".gz", "line"), (".json", "record"), (".csv", "line"),
        (".parquet", "row"),
    }  # fmt: skip


@pytest.mark.slow
def test_the_whole_stream_is_read_back_document_by_document(made: TokenSet) -> None:
    """Held-out tokens are the only ones that are missing between two passages of a file."""
    ended, passages = 0, Passages(made, [])
    for start in range(0, made.train.tokens, 50_000):
        ended += sum(p.ends for p in passages.of(start, min(start + 50_000, made.train.tokens)))
    held_out = made.validation.tokens / (made.validation.tokens + made.train.tokens)
    assert ended <= made.index.documents
    assert ended > made.index.documents * (1 - 4 * held_out)


def test_provenance_is_small(made: TokenSet) -> None:
    kept = sum(path.stat().st_size for path in (made.path / "provenance").iterdir())
    assert kept < 0.01 * made.index.bytes
    origin = read(made.path, made.index.train[0])
    assert origin is not None
    part = origin.parts[0]
    assert part.marks == sorted(part.marks)
    assert len(part.marks) <= part.span.size // CHARACTERS_PER_MARK
    assert sum(part.tokens for part in origin.parts) >= made.index.train[0].tokens


def test_the_nearest_mark_before_a_token_is_taken() -> None:
    part = ProvenancePart(file=None, span=None, tokens=30, marks=[(2, 10), (4, 20)])  # type: ignore[arg-type]
    assert [part.mark(token) for token in (0, 9, 10, 19, 20, 29)] == [
        (0, 0),
        (0, 0),
        (2, 10),
        (2, 10),
        (4, 20),
        (4, 20),
    ]


@pytest.fixture
def small(tmp_path: Path) -> TokenSet:
    (tmp_path / "data").mkdir()
    for name in "abc":
        lines = [json.dumps({"text": f"line {i} of {name}"}) for i in range(300)]
        (tmp_path / f"data/{name}.jsonl").write_text("\n".join(lines))
    return prepare(Data(path=str(tmp_path / "data"), tokenizer=TrainTokenizer(train=270)), tmp_path / "set")


def first(tokens: TokenSet, locations: list[str] | None = None) -> Passage:
    return Passages(tokens, locations or []).of(0, 40)[0]


def test_a_set_made_without_provenance_shows_the_text_alone(small: TokenSet) -> None:
    shutil.rmtree(small.path / "provenance")
    passages = Passages(TokenSet.open(small.path), []).of(0, 40)
    assert [p.text for p in passages][:2] == ["line 0 of a", "line 1 of a"]
    assert {(p.file, p.place) for p in passages} == {(None, None)}
    assert passages[0].problem == "the token set was made without a record of its sources"


def test_a_missing_or_changed_source_is_reported(small: TokenSet, tmp_path: Path) -> None:
    path = tmp_path / "data/a.jsonl"
    text = path.read_text()
    assert (first(small).file, first(small).place) == (str(path), 1)
    path.write_text(text.replace("line 0", "LINE 0"))
    changed = first(small)
    assert (changed.file, changed.place, changed.text) == (str(path), None, "line 0 of a")
    assert changed.problem == "it has changed since it was prepared"
    path.unlink()
    assert first(small).problem == "it is gone"
    path.write_text(text)  # another time of change, the same content
    os.utime(path, (0, 0))
    assert (first(small).problem, first(small).place) == (None, 1)


def test_sources_that_have_moved_are_found_by_the_runs_data_path(small: TokenSet, tmp_path: Path) -> None:
    (tmp_path / "data").rename(tmp_path / "moved")
    assert first(small, [str(tmp_path / "nowhere")]).problem == "it is gone"
    passage = first(small, [str(tmp_path / "moved")])
    assert (passage.file, passage.place, passage.problem) == (str(tmp_path / "moved/a.jsonl"), 1, None)


def test_an_end_token_inside_a_text_does_not_shift_what_follows(tmp_path: Path) -> None:
    texts = [f"before <|endoftext|> after {i}" for i in range(200)]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    tokens = prepare(Data(path=str(tmp_path / "a.jsonl"), tokenizer=TrainTokenizer(train=270)), tmp_path / "set")
    passages = Passages(tokens, []).of(0, tokens.train.tokens)
    assert [(p.place, p.text) for p in passages[:150]] == [(i + 1, text) for i, text in enumerate(texts[:150])]
