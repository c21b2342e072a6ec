"""Files of a web server: by their URL, by ranges, and noticed when they change."""

from pathlib import Path

import pytest

from stoker.data.passages import Passages
from stoker.data.prepare import prepared
from stoker.data.remote import fetch, find, kept_in
from stoker.spec.data import Data, TrainTokenizer
from stoker.spec.errors import UserError

TEXT = "the stoker feeds the fire, line after line\n" * 400


def test_files_of_the_web_and_of_this_machine_are_one_data_set(hub, tmp_path: Path) -> None:
    server = hub(fail_every=3)
    server.write("files/a.txt", TEXT)
    server.write("files/b.jsonl", '{"text": "from the web"}\n' * 50)
    (tmp_path / "here.txt").write_text("from here\n" * 50)
    paths = [f"{server.url}/files/a.txt", str(tmp_path / "here.txt"), f"{server.url}/files/b.jsonl?download=1"]
    tokens = prepared(Data(path=paths, tokenizer=TrainTokenizer(train=300), validation=0.0), tmp_path / "store")
    passages = Passages(tokens, paths).of(0, tokens.train.tokens)
    files = [passage.file for passage in passages]
    assert list(dict.fromkeys(files)) == paths
    assert "".join(passage.text for passage in passages if passage.file == paths[0]) == TEXT


@pytest.mark.parametrize("name", ["a.txt", "no-ranges.txt"])
def test_half_a_file_is_gone_on_with_even_where_ranges_are_not_known(hub, tmp_path: Path, name: str) -> None:
    server = hub()
    server.write(f"files/{name}", TEXT)
    (file,) = find(f"{server.url}/files/{name}")
    file = kept_in(file, tmp_path)
    file.path.parent.mkdir()
    file.path.with_name(f"{file.path.name}.part").write_text(TEXT[:5000])
    assert sum(fetch(file)) == len(TEXT) - 5000
    assert file.path.read_text() == TEXT


def test_a_file_that_changes_after_it_was_listed_is_refused(hub, tmp_path: Path) -> None:
    server = hub()
    server.write("files/a.txt", TEXT)
    (file,) = find(f"{server.url}/files/a.txt")
    server.write("files/a.txt", TEXT.upper())
    assert find(f"{server.url}/files/a.txt")[0].sha256 != file.sha256
    with pytest.raises(UserError, match="changed since it was listed"):
        list(fetch(kept_in(file, tmp_path)))


def data(*paths: str) -> Data:
    return Data(path=list(paths), tokenizer=TrainTokenizer(train=300), validation=0.0)


def test_a_file_that_two_words_mean_is_taken_once(hub, tmp_path: Path) -> None:
    server = hub()
    server.write("files/a.txt", TEXT)
    server.write("datasets/owner/name/b.txt", TEXT)
    (tmp_path / "c.txt").write_text(TEXT)
    here, there, listed = str(tmp_path / "c.txt"), f"{server.url}/files/a.txt", "hf://owner/name"
    tokens = prepared(data(here, there, there, here, listed, f"{listed}/b.txt"), tmp_path / "store", workers=1)
    assert tokens.index.bytes == 3 * len(TEXT)


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("{url}/files/none.txt", ["there is no"]),
        ("{url}/files/empty.txt", ["is empty"]),
        ("{url}/files/*.txt", ["does not list", "each file"]),
        ("http://example.com/a.txt", ["http://", "https://"]),
        ("https://127.0.0.1:9/a.txt", ["cannot be fetched", "network"]),
    ],
)
def test_what_cannot_be_fetched_is_one_line_and_a_remedy(hub, word: str, words: list[str]) -> None:
    server = hub()
    server.write("files/empty.txt", "")
    with pytest.raises(UserError) as e:
        find(word.format(url=server.url))
    assert all(part in str(e.value) for part in words), str(e.value)
