import gzip
import json
from pathlib import Path

import pytest

from stoker.spec.errors import UserError
from stoker.spec.load import load
from stoker.spec.run import RunSpec
from stoker.spec.starter import DataSummary, starter, summarize


def started(summary: DataSummary, folder: Path) -> RunSpec:
    file = folder / "run.yaml"
    text = starter(summary, file)
    assert len(text.splitlines()) <= 40
    file.write_text(text)
    return load(file, []).spec


@pytest.mark.parametrize("size", [10, 1000, 10**5, 10**7, 10**9, 10**10, 10**12])
def test_a_starter_of_any_size_loads_and_leaves_an_epoch_enough_steps(tmp_path: Path, size: int) -> None:
    summary = DataSummary(paths=[tmp_path / "books"], files=3, formats=["text"], bytes=size, tokens=size // 4)
    spec = started(summary, tmp_path)
    assert spec.data.path == str(tmp_path / "books")
    assert spec.until.steps
    per_step = spec.batch.sequences * spec.batch.length
    if summary.tokens > 400:
        assert summary.tokens // per_step >= 50
        assert spec.until.steps * per_step <= 5 * summary.tokens


def test_a_few_bytes_of_text_are_enough_for_a_run_file(tmp_path: Path) -> None:
    (tmp_path / "tiny.txt").write_text("ab")
    assert started(summarize([str(tmp_path / "tiny.txt")]), tmp_path).until.steps


def test_more_text_gets_a_larger_model(tmp_path: Path) -> None:
    sizes = []
    for tokens in (10**5, 10**8, 10**9, 10**11):
        summary = DataSummary(paths=[tmp_path / "x"], files=1, formats=["text"], bytes=4 * tokens, tokens=tokens)
        spec = started(summary, tmp_path)
        sizes.append(12 * spec.model.layers * spec.model.width**2)
    assert sizes == sorted(set(sizes))


def test_the_field_with_the_text_is_detected(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write(json.dumps({"id": "1", "body": "a long story about nothing"}) + "\n")
    (tmp_path / "b.tsv").write_text("id\tstory\n1\tonce upon a time\n")
    (tmp_path / "c.jsonl").write_text('{"text": "x", "title": "a longer text"}\n')
    assert summarize([str(tmp_path / "a.jsonl.gz")]).field == "body"
    assert summarize([str(tmp_path / "b.tsv")]).field == "story"
    assert summarize([str(tmp_path / "c.jsonl")]).field is None


def test_files_folders_and_globs_are_summarized_without_hidden_files(tmp_path: Path) -> None:
    for name in ("a.txt", "b.md", ".git/c.txt", "d/e.txt", "d/.f"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("12345678")
    assert (summarize([str(tmp_path)]).files, summarize([str(tmp_path)]).bytes) == (3, 24)
    assert summarize([str(tmp_path / "*.txt"), str(tmp_path / "d")]).files == 2
    assert summarize([str(tmp_path / "a.txt"), str(tmp_path)]).files == 3


def test_a_prepared_folder_keeps_its_tokenizer(tmp_path: Path) -> None:
    folder = tmp_path / "tokens"
    folder.mkdir()
    index = {"bytes": 8000, "vocab": 500, "train": [{"tokens": 3000}], "validation": []}
    (folder / "index.json").write_text(json.dumps(index))
    spec = started(summarize([str(folder)]), tmp_path)
    assert spec.data.tokenizer is None


@pytest.mark.parametrize(
    ("name", "message"), [("none", "there is no"), ("empty", "it contains no text"), ("n*", "there is no")]
)
def test_data_with_no_text_in_it_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=message):
        summarize([str(tmp_path / name)])


def test_a_run_file_inside_its_own_data_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 1000)
    with pytest.raises(UserError, match="inside its own data"):
        starter(summarize([str(tmp_path)]), tmp_path / "run.yaml")


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("books", "books"),
        ("books/", "books"),
        ("books/*.txt", "books"),
        ("books/**/*.txt", "books"),
        ("books/a long story.txt", "a-long-story"),
        ("pile.jsonl.zst", "pile"),
        ("books.v1.2", "books.v1.2"),
        ("2024", "2024"),
        ("true.txt", "true"),
        ("книги", "run"),
    ],
)
def test_a_run_is_named_after_its_data_wherever_its_file_is(tmp_path: Path, place: str, name: str) -> None:
    for folder in ("books", "books.v1.2", "2024", "книги"):
        (tmp_path / folder).mkdir()
    for file in ("books/a long story.txt", "pile.jsonl.zst", "true.txt"):
        (tmp_path / file).write_text("x")
    summary = DataSummary(paths=[tmp_path / place], files=1, formats=["text"], bytes=4000, tokens=1000)
    assert started(summary, tmp_path).name == name
    first = next(line for line in (tmp_path / "run.yaml").read_text().splitlines() if line and line[0] != "#")
    assert first.startswith("name: ")


def test_a_run_may_be_named_after_a_long_number(tmp_path: Path) -> None:
    name = "1" * 50
    summary = DataSummary(paths=[tmp_path / name], files=1, formats=["text"], bytes=4000, tokens=1000)
    (tmp_path / name).mkdir()
    assert started(summary, tmp_path).name == name
