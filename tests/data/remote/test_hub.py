"""A dataset of the hub gives the tokens of its files, whatever the network does meanwhile."""

import csv
import gzip
import io
import json
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker.data.prepare import prepared
from stoker.data.remote import fetch, find, kept_in
from stoker.data.shards import TokenSet
from stoker.spec.data import Data, TrainTokenizer
from stoker.spec.errors import UserError

WORDS = ["stoker", "feeds", "the", "fire", "Grüße", "漢字", "don't", "\n", "  ", "end."]


def prose(size: int, seed: int) -> str:
    draw = random.Random(seed)
    return " ".join(draw.choices(WORDS, k=size // 6))


def data(path: str | list[str], **settings: object) -> Data:
    return Data(path=path, **{"tokenizer": TrainTokenizer(train=300), **settings})  # type: ignore[arg-type]


def stream(tokens: TokenSet) -> np.ndarray:
    parts = [tokens.train, tokens.validation]
    return np.concatenate(
        [tokens_of_shard for split in parts for _, _, tokens_of_shard in split.stretches(0, split.tokens)]
    )


def write_every_format(hub, name: str = "owner/name") -> Path:
    home = f"datasets/{name}"
    texts = [prose(3000, seed) for seed in range(6)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    hub.write(f"{home}/a.txt", prose(80_000, 100))
    hub.write(f"{home}/b.jsonl", lines)
    hub.write(f"{home}/c.jsonl.gz", gzip.compress(lines, mtime=0))
    with pa.CompressedOutputStream(str(hub.write(f"{home}/d.txt.zst", "")), "zstd") as file:
        file.write(prose(5000, 7).encode())
    hub.write(f"{home}/e.json", json.dumps({"data": [{"text": text} for text in texts]}))
    rows = io.StringIO()
    csv.writer(rows).writerows([["id", "text"], *([i, text] for i, text in enumerate(texts))])
    hub.write(f"{home}/f.csv", rows.getvalue())
    pq.write_table(pa.table({"text": texts}), hub.write(f"{home}/g.parquet", ""), row_group_size=2)
    hub.write(f"{home}/small/h.txt", "a small file is known by Git's own hash")
    hub.write(f"{home}/README.md", "this is documentation")
    hub.write(f"{home}/.gitattributes", "hidden")
    return hub.root / home


def test_every_format_gives_the_tokens_of_the_same_files_here_while_every_third_request_fails(
    hub, tmp_path: Path
) -> None:
    server = hub(fail_every=3)
    copy = tmp_path / "copy"
    shutil.copytree(write_every_format(server), copy)
    (copy / "README.md").unlink()
    fetched = prepared(data("hf://datasets/owner/name"), tmp_path / "store", workers=1)
    own_tokenizer = str(fetched.tokenizer)
    here = prepared(data(str(copy), tokenizer=own_tokenizer), tmp_path / "here", workers=1)
    # The units differ, and so does what is held out.
    assert sorted(stream(fetched).tolist()) == sorted(stream(here).tolist())
    assert fetched.index.documents == here.index.documents
    requests = server.requests()
    assert {request["fault"] for request in requests} == {None, 500, 429, "cut"}
    assert not list(fetched.path.rglob("*fetched*")), "a fetched file is deleted once it is tokenised"


def test_an_interrupted_body_is_resumed_and_no_byte_comes_twice(hub, tmp_path: Path) -> None:
    server = hub(fail_every=3)
    home = server.root / "datasets/owner/name"
    for number in range(6):
        server.write(f"datasets/owner/name/{number}.txt", prose(30_000, number))
    tokens = prepared(data("hf://owner/name"), tmp_path, workers=1)
    bodies = [request for request in server.requests() if request["path"].startswith("/cdn/")]
    assert any(request["fault"] == "cut" for request in bodies)
    assert any(request["range"] and request["status"] == 206 for request in bodies)
    for file in home.glob("*.txt"):
        sent = sum(request["sent"] for request in bodies if request["path"].endswith(f"/{file.name}"))
        assert sent == file.stat().st_size
    tokens.verify()


def test_nothing_is_fetched_again_until_a_file_changes(hub, tmp_path: Path) -> None:
    server = hub()
    for number in range(3):
        server.write(f"datasets/owner/name/{number}.txt", prose(3000, number))
    first = prepared(data("hf://datasets/owner/name"), tmp_path)
    before = len([request for request in server.requests() if request["path"].startswith("/cdn/")])
    server.write("datasets/owner/name/README.md", "another commit, the same data")
    second = prepared(data("hf://datasets/owner/name"), tmp_path)
    assert (second.key, second.path) == (first.key, first.path)
    assert len([request for request in server.requests() if request["path"].startswith("/cdn/")]) == before
    server.write("datasets/owner/name/1.txt", prose(3000, 9))
    assert prepared(data("hf://datasets/owner/name"), tmp_path).key != first.key


def test_a_partial_file_of_a_killed_prepare_is_resumed(hub, tmp_path: Path) -> None:
    server = hub()
    server.write("datasets/owner/name/a.txt", prose(50_000, 1))
    undisturbed = prepared(data("hf://datasets/owner/name"), tmp_path / "one")
    resumed = prepared(data("hf://datasets/owner/name"), tmp_path / "two")
    shutil.rmtree(resumed.path)
    resumed.path.mkdir()
    (file,) = find("hf://datasets/owner/name")
    (resumed.path / ".fetched").mkdir()
    partial, content = kept_in(file, resumed.path).path, (server.root / "datasets/owner/name/a.txt").read_bytes()
    partial.with_name(f"{partial.name}.part").write_bytes(content[:4000])
    before = len(server.requests())
    resumed = prepared(data("hf://datasets/owner/name"), tmp_path / "two")
    bodies = [request for request in server.requests()[before:] if request["path"].startswith("/cdn/")]
    assert [request["range"] for request in bodies] == ["bytes=4000-"]
    assert np.array_equal(stream(resumed), stream(undisturbed))


@pytest.mark.parametrize(
    ("location", "names"),
    [
        ("hf://datasets/owner/name", ["data/test-0.jsonl", "data/train-0.jsonl", "data/train-1.jsonl", "de/x.csv"]),
        ("hf://owner/name/de", ["x.csv"]),
        ("hf://datasets/owner/name@main/data/train-*.jsonl", ["train-0.jsonl", "train-1.jsonl"]),
        ("hf://datasets/owner/name/**/*0.jsonl", ["data/test-0.jsonl", "data/train-0.jsonl"]),
        ("hf://datasets/owner/name/data/test-0.jsonl", ["test-0.jsonl"]),
        ("hf://datasets/owner/name/README.md", ["README.md"]),
        ("hf://datasets/owner/name@refs/convert/parquet/de", ["x.csv"]),
    ],
)
def test_a_path_or_a_glob_picks_a_config_or_a_split(hub, location: str, names: list[str]) -> None:
    server = hub()
    for name in (
        "data/train-0.jsonl",
        "data/train-1.jsonl",
        "data/test-0.jsonl",
        "de/x.csv",
        "README.md",
        "b.png",
        "c.hdf5",
    ):
        server.write(f"datasets/owner/name/{name}", f"text\n{name}\n")
    server.write("datasets/owner/name/dataset_infos.json", "{}")
    assert [file.name for file in find(location)] == names


def test_a_token_is_for_the_hub_alone(hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = hub()
    server.write("datasets/private/name/a.txt", prose(3000, 1))
    monkeypatch.setenv("HF_TOKEN", "good")
    prepared(data("hf://datasets/private/name"), tmp_path)
    requests = server.requests()
    assert {request["authorization"] for request in requests if "/cdn/" not in request["path"]} == {"Bearer good"}
    assert [request["authorization"] for request in requests if "/cdn/" in request["path"]] == [None]


@pytest.mark.parametrize(
    ("location", "phrases"),
    [
        ("hf://datasets/nobody/nothing", ["no dataset nobody/nothing", "Check its name", "HF_TOKEN"]),
        ("hf://datasets/private/name", ["private", "HF_TOKEN"]),
        ("hf://datasets/gated/name", ["no permission", "Ask for access", "HF_TOKEN"]),
        ("hf://datasets/owner/name@v9", ["no revision 'v9'"]),
        ("hf://datasets/owner/name/nowhere", ["has no nowhere"]),
        ("hf://datasets/owner/name/*.parquet", ["no data files", "refs/convert/parquet"]),
        ("hf://datasets/name", ["hf://datasets/OWNER/NAME"]),
        ("ftp://host/file", ["ftp://", "hf://"]),
    ],
)
def test_missing_and_forbidden_datasets_are_one_line_and_a_remedy(hub, location: str, phrases: list[str]) -> None:
    server = hub()
    for name in ("owner/name", "gated/name", "private/name"):
        server.write(f"datasets/{name}/a.txt", "text")
    with pytest.raises(UserError) as e:
        find(location)
    assert all(phrase in str(e.value) for phrase in phrases), str(e.value)


def test_a_hub_that_does_not_answer_is_given_up(hub) -> None:
    server = hub()
    server.close()
    with pytest.raises(UserError, match="cannot be fetched"):
        find("hf://datasets/owner/name")


@pytest.mark.parametrize(
    "answers",
    [
        [{"error": "no such thing"}],
        ["<html>"],
        [{"sha": "../x"}],
        [{"sha": "c0ffee"}, {"error": "no such thing"}],
        [{"sha": "c0ffee"}, [{"type": "file", "path": "a.txt", "size": "large", "oid": "1"}]],
        [{"sha": "c0ffee"}, [{"type": "file", "path": "a.txt", "size": 1}]],
    ],
)
def test_a_server_that_is_no_hub_is_reported_in_one_line(answering, monkeypatch, answers: list[object]) -> None:
    host = answering(lambda _, path, __: (200, {}, json.dumps(answers["/tree/" in path]).encode()))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://{host}")
    with pytest.raises(UserError, match=r"does not answer as the Hugging Face hub does.*Check HF_ENDPOINT"):
        find("hf://datasets/owner/name")


def test_a_list_without_an_end_is_given_up(answering, monkeypatch) -> None:
    def answer(_: str, path: str, __: object) -> tuple[int, dict[str, str], bytes]:
        page = path.partition("?")[0]
        return 200, {"Link": f'<{page}?cursor=1>; rel="next"'}, b"[]" if "/tree/" in path else b'{"sha": "c0ffee"}'

    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://{answering(answer)}")
    with pytest.raises(UserError, match=r"the list of its files has no end"):
        find("hf://datasets/owner/name")


def test_an_unencrypted_hub_gets_no_request(answering, monkeypatch) -> None:
    link = {"Link": '<http://example.com/more>; rel="next"'}
    host = answering(lambda _, path, __: (200, link, b"[]" if "/tree/" in path else b'{"sha": "c0ffee"}'))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://{host}")
    with pytest.raises(UserError, match=r"http://example.com/more: .* can be read and changed on its way"):
        find("hf://datasets/owner/name")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://example.com")
    with pytest.raises(UserError, match=r"HF_ENDPOINT is http://example.com: .*Set it to an https:// address"):
        find("hf://datasets/owner/name")


def test_a_file_with_another_hash_than_the_hubs_is_refused(hub, tmp_path: Path) -> None:
    server = hub()
    file = server.write("datasets/owner/name/a.txt", prose(5000, 1))
    files = find("hf://datasets/owner/name")
    file.write_bytes(b"x" * file.stat().st_size)
    (tmp_path / ".fetched").mkdir()
    fetched = kept_in(files[0], tmp_path)
    fetched.path.with_name(f"{fetched.path.name}.part").write_bytes(file.read_bytes())
    with pytest.raises(UserError, match="damaged"):
        list(fetch(fetched))


def test_a_bad_record_is_reported_with_the_remote_files_name(hub, tmp_path: Path) -> None:
    server = hub()
    server.write("datasets/owner/name/a.jsonl", '{"text": "good"}\n{"text": 7}\n')
    server.write("datasets/owner/name/b.txt", b"\xff\xfe binary")
    with pytest.raises(UserError, match=r"hf://datasets/owner/name@[0-9a-f]{40}/a.jsonl, line 2"):
        prepared(data("hf://datasets/owner/name/a.jsonl"), tmp_path, workers=1)
    with pytest.raises(UserError, match=r"hf://datasets/owner/name@[0-9a-f]{40}/b.txt is not UTF-8"):
        prepared(data("hf://datasets/owner/name/b.txt"), tmp_path, workers=1)
    tokens = prepared(data("hf://datasets/owner/name", skip_bad=True), tmp_path, workers=1)
    assert tokens.index.skipped == 2


def test_the_command_prepares_it_and_reports_errors(hub, stoker) -> None:
    server = hub(fail_every=3)
    server.write("datasets/owner/name/train/a.txt", prose(200_000, 1))
    done = stoker("prepare", "hf://datasets/owner/name/train/*.txt", "-o", "set", "--tokenizer", "300")
    assert re.search(r"training the tokenizer: \d", done.stdout), "bytes are reported as they arrive"
    assert (stoker.folder / "set" / "index.json").is_file()
    wrong = stoker("prepare", "hf://datasets/nobody/nothing", "-o", "other", code=2)
    assert "Traceback" not in wrong.stderr
    assert len(wrong.stderr.strip().splitlines()) == 1
