"""Files of a web server: by their URL, by ranges, and noticed when they change."""

from email.message import Message
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
    assert list(dict.fromkeys(files)) == [*paths[:2], f"{server.url}/files/b.jsonl"], "a query may be a key"
    assert not any(b"download" in path.read_bytes() for path in tokens.path.rglob("*") if path.is_file())
    assert "".join(passage.text for passage in passages if passage.file == paths[0]) == TEXT


@pytest.mark.parametrize("name", ["a.txt", "no-ranges.txt"])
def test_a_partial_file_is_resumed_even_without_range_support(hub, tmp_path: Path, name: str) -> None:
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


def test_files_of_one_name_and_date_are_told_apart_by_place_and_size(answering, tmp_path: Path) -> None:
    texts = {"/a/x.txt": TEXT, "/b/x.txt": TEXT.upper(), "/get?id=1": TEXT, "/get?id=2": TEXT.upper()}

    def answer(_: str, path: str, __: Message) -> tuple[int, dict[str, str], bytes]:
        headers = {"Content-Length": str(len(texts[path])), "Last-Modified": "Sun, 15 Nov 2026 10:00:00 GMT"}
        return 200, headers, texts[path].encode()

    host = answering(answer)
    keys = {path: prepared(data(f"http://{host}{path}"), tmp_path, workers=1).key for path in texts}
    assert len(set(keys.values())) == 4
    texts["/a/x.txt"] += "more"
    assert prepared(data(f"http://{host}/a/x.txt"), tmp_path, workers=1).key not in keys.values()


def test_a_file_whose_changes_would_go_unnoticed_is_refused(answering) -> None:
    host = answering(lambda *_: (200, {"Content-Length": "4"}, b"text"))
    with pytest.raises(UserError, match=r"neither ETag nor Last-Modified.*Fetch the file first"):
        find(f"http://{host}/a.txt")


def test_a_file_that_is_named_twice_is_used_once(hub, tmp_path: Path) -> None:
    server = hub()
    server.write("files/a.txt", TEXT)
    server.write("datasets/owner/name/b.txt", TEXT)
    (tmp_path / "c.txt").write_text(TEXT)
    here, remote, listed = str(tmp_path / "c.txt"), f"{server.url}/files/a.txt", "hf://owner/name"
    tokens = prepared(data(here, remote, remote, here, listed, f"{listed}/b.txt"), tmp_path / "store", workers=1)
    assert tokens.index.bytes == 3 * len(TEXT)


@pytest.mark.parametrize("target", ["http://example.com/a.txt", "ftp://127.0.0.1:9/a.txt"])
def test_a_redirect_to_where_anybody_could_listen_is_not_followed(answering, target: str) -> None:
    host = answering(lambda *_: (302, {"Location": target, "Content-Length": "0"}, b""))
    with pytest.raises(UserError, match=r"can be read and changed on its way"):
        find(f"http://{host}/a.txt")


def test_more_bytes_than_announced_are_refused(answering, tmp_path: Path) -> None:
    def answer(_: str, __: str, headers: Message) -> tuple[int, dict[str, str], bytes]:
        if headers["Range"] == "bytes=0-0":
            return 206, {"ETag": '"x"', "Content-Range": "bytes 0-0/10", "Content-Length": "1"}, b"a"
        return 200, {"ETag": '"x"'}, b"a" * (8 << 20)

    file = kept_in(find(f"http://{answering(answer)}/a.txt?key=hunter2")[0], tmp_path)
    with pytest.raises(UserError, match="changed since it was listed") as e:
        list(fetch(file))
    assert "hunter2" not in str(e.value)
    assert sum(path.stat().st_size for path in file.path.parent.iterdir()) <= 10


def test_another_part_than_was_asked_for_is_not_taken(answering, tmp_path: Path) -> None:
    wrong = [True]

    def answer(_: str, __: str, headers: Message) -> tuple[int, dict[str, str], bytes]:
        start = int(headers["Range"].removeprefix("bytes=").partition("-")[0]) if headers["Range"] else 0
        stop = 1 if headers["Range"] == "bytes=0-0" else len(TEXT)
        if start and wrong:
            wrong.pop()
            start, stop = 0, stop - start
        content_range = f"bytes {start}-{stop - 1}/{len(TEXT)}"
        return 206, {"ETag": '"x"', "Content-Range": content_range}, TEXT[start:stop].encode()

    file = kept_in(find(f"http://{answering(answer)}/a.txt")[0], tmp_path)
    file.path.parent.mkdir()
    file.path.with_name(f"{file.path.name}.part").write_text(TEXT[:50])
    assert sum(fetch(file)) == len(TEXT) - 50
    assert not wrong
    assert file.path.read_text() == TEXT


def test_a_long_name_in_any_script_is_no_trouble(hub, tmp_path: Path) -> None:
    server, name = hub(), f"{'漢' * 80}.txt"
    server.write(f"files/{name}", TEXT)
    file = kept_in(find(f"{server.url}/files/{name}")[0], tmp_path)
    assert sum(fetch(file)) == len(TEXT)
    assert file.path.suffix == ".txt"


@pytest.mark.parametrize(
    ("location", "phrases"),
    [
        ("{url}/files/x.hdf5", ["HDF5 files can only be read from this machine", "Fetch them first"]),
        ("{url}/files/none.txt", ["there is no"]),
        ("{url}/files/empty.txt", ["is empty"]),
        ("{url}/files/*.txt", ["does not list", "each file"]),
        ("http://example.com/a.txt", ["http://", "https://"]),
        ("https://127.0.0.1:9/a.txt", ["cannot be fetched", "network"]),
    ],
)
def test_errors_are_one_line_and_a_remedy(hub, location: str, phrases: list[str]) -> None:
    server = hub()
    server.write("files/empty.txt", "")
    server.write("files/x.hdf5", "x")
    with pytest.raises(UserError) as e:
        find(location.format(url=server.url))
    assert all(phrase in str(e.value) for phrase in phrases), str(e.value)


@pytest.mark.parametrize("header", [{"Retry-After": "7"}, {"RateLimit": '"api";r=0;t=7'}])
def test_a_rate_limit_is_waited_for(answering, monkeypatch: pytest.MonkeyPatch, header: dict[str, str]) -> None:
    waits: list[float] = []
    monkeypatch.setattr("stoker.data.remote.transfer.time.sleep", waits.append)
    responses = [(429, header, b""), (206, {"Content-Range": "bytes 0-0/9", "ETag": '"a"'}, b"x")]
    (file,) = find(f"http://{answering(lambda *_: responses.pop(0))}/a.txt")
    assert (file.size, waits) == (9, [7.0])
