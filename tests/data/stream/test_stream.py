"""A stream is made in the order of its data, window by window, by one feeder at a time that can be killed."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stoker.data.order import Windowed
from stoker.data.sets import open_set, set_of
from stoker.data.shards import INDEX_FILE, TokenSet
from stoker.data.stream.feeder import feeder_of
from stoker.data.stream.reader import Abandoned, StreamSet
from stoker.data.stream.writer import StreamWriter, feed
from stoker.spec.data import Data, TrainTokenizer
from stoker.spec.errors import UserError

WINDOW = 2000


def write(folder: Path, files: int = 6, lines: int = 200) -> Path:
    draw = random.Random(7)
    folder.mkdir()
    for number in range(files):
        texts = (f"{draw.choice(['stoker', 'boiler'])} {i} of file {number} " * 3 for i in range(lines))
        (folder / f"{number}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return folder


def spec(path: object, **settings: object) -> Data:
    given = {"tokenizer": TrainTokenizer(train=300), "stream": True, "window": WINDOW, "validation": 0.05, **settings}
    return Data(path=str(path), **given)  # type: ignore[arg-type]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.bin")}


def test_the_first_window_is_enough_to_start_and_the_rest_completes_the_set(tmp_path: Path) -> None:
    data = spec(write(tmp_path / "data"))
    tokens = set_of(data, tmp_path / "store")
    assert isinstance(tokens, StreamSet)
    assert not tokens.whole
    assert WINDOW < tokens.train.tokens < 3 * WINDOW
    held_out = tokens.validation.tokens
    assert held_out > 0.04 * WINDOW
    feed(tokens.path, tokens=sys.maxsize, progress=lambda _: None)
    complete = open_set(tokens.path)
    assert complete.whole
    assert not isinstance(complete, StreamSet)
    assert complete.key == tokens.key == set_of(data, tmp_path / "store").key
    assert complete.validation.tokens == held_out, "only the first window has any"
    assert complete.index.documents == 1200
    complete.verify()


def test_the_order_is_the_same_while_the_end_is_unknown_and_after(tmp_path: Path) -> None:
    data = spec(write(tmp_path / "data"))
    early = set_of(data, tmp_path / "store")
    first = early.train.order(5, 16).draw(0, 100)
    feed(early.path, tokens=sys.maxsize, progress=lambda _: None)
    late = early.train.order(5, 16).draw(0, 3000)  # the same object has grown
    assert np.array_equal(first.ids, late.ids[:100])
    complete = open_set(early.path)
    samples = complete.train.samples(16)
    assert np.array_equal(late.ids, Windowed(5, samples, WINDOW // 16).draw(0, 3000).ids)
    assert np.array_equal(early.train.read(late.ids, 16), complete.train.read(late.ids, 16))
    assert sorted(late.ids[:samples]) == list(range(samples))


@pytest.mark.slow
def test_the_shards_are_the_same_however_often_the_feeder_is_killed(tmp_path: Path, eventually) -> None:
    data = spec(write(tmp_path / "data"))
    undisturbed = set_of(data, tmp_path / "one").path
    feed(undisturbed, tokens=sys.maxsize, progress=lambda _: None)
    killed = set_of(data, tmp_path / "two")
    assert isinstance(killed, StreamSet)
    draw = random.Random(os.urandom(4))
    feeder = feeder_of(killed)
    assert feeder is not None
    for windows in (2, 4, 6):
        made = len((killed.path / "journal.jsonl").read_text().splitlines())
        feeder.want(windows * WINDOW)
        process = feeder._process
        assert process is not None
        eventually(lambda made=made: len((killed.path / "journal.jsonl").read_text().splitlines()) > made)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        with open(killed.path / "journal.jsonl", "a") as journal:
            journal.write('{"train": {"fi'[: draw.randrange(14)])  # torn by the kill
    feeder.want(sys.maxsize // 2)
    eventually((killed.path / INDEX_FILE).is_file)
    feeder.close()
    assert content(killed.path) == content(undisturbed)
    TokenSet.open(killed.path).verify()


def test_the_feeder_stays_a_limited_distance_ahead_and_ends_with_its_parent(tmp_path: Path, eventually) -> None:
    data = spec(write(tmp_path / "data"), ahead=1)
    tokens = set_of(data, tmp_path / "store")
    argv = [sys.executable, "-m", "stoker.data.stream", str(tokens.path)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, text=True)
    assert process.stdin is not None
    process.stdin.write(f"{2 * WINDOW}\n")
    process.stdin.flush()
    maker = StreamWriter(tokens.path)
    eventually(lambda: maker.has(3 * WINDOW))
    process.stdin.close()
    assert process.wait(30) == 0
    maker.journal.refresh()
    assert maker.journal.tokens < 5 * WINDOW
    assert not maker.journal.ended


def test_two_feeders_make_every_shard_once(tmp_path: Path, eventually) -> None:
    data = spec(write(tmp_path / "data"))
    tokens = set_of(data, tmp_path / "store")
    both = [feeder_of(open_set(tokens.path)) for _ in range(2)]
    for feeder in both:
        assert feeder is not None
        feeder.want(sys.maxsize // 2)
    eventually((tokens.path / INDEX_FILE).is_file)
    for feeder in both:
        assert feeder is not None
        feeder.close()
    complete = open_set(tokens.path)
    assert complete.index.documents == 1200
    files = [shard.file for shard in complete.index.train]
    assert len(set(files)) == len(files)


def test_an_error_of_the_feeder_reaches_all_waiting_readers(tmp_path: Path) -> None:
    folder = write(tmp_path / "data")
    with open(folder / "5.jsonl", "a") as file:
        file.write('{"text": 7}\n')
    tokens = set_of(spec(folder), tmp_path / "store")
    feeder_of(tokens)
    order = tokens.train.order(1, 16)
    order.draw(0, 100)
    with pytest.raises(UserError, match=r"5\.jsonl, line 201"):
        order.draw(100_000, 100_001)
    with pytest.raises(UserError, match=r"5\.jsonl, line 201"):
        open_set(tokens.path).train.order(1, 16).draw(100_000, 100_001)
    (folder / "5.jsonl").write_text('{"text": "fixed"}\n')
    assert set_of(spec(folder), tmp_path / "store").problem() is None


def test_no_reader_waits_for_tokens_that_will_not_come(tmp_path: Path) -> None:
    tokens = set_of(spec(write(tmp_path / "data")), tmp_path / "store")
    assert isinstance(tokens, StreamSet)
    tokens.train.abandon()
    with pytest.raises(Abandoned):
        tokens.train.order(1, 16).draw(100_000, 100_001)


def test_a_remote_stream_keeps_one_file_at_a_time(hub, tmp_path: Path) -> None:
    server = hub(fail_every=3)
    for file in sorted(write(tmp_path / "data").iterdir()):
        server.write(f"datasets/owner/name/{file.name}", file.read_bytes())
    remote = set_of(spec("hf://datasets/owner/name", ahead=1), tmp_path / "store")
    fetched = {
        request["path"].rpartition("/")[2] for request in server.requests() if request["path"].startswith("/cdn/")
    }
    assert fetched < {f"{number}.jsonl" for number in range(6)}, "the rest is not fetched before its turn"
    maker, kept_files = StreamWriter(remote.path), 0
    while not maker.has(sys.maxsize):
        for _ in maker.step():
            kept_files = max(kept_files, len(list((remote.path / ".fetched").glob("*.jsonl"))))
    assert kept_files <= 2
    assert not (remote.path / ".fetched").exists()
    local = set_of(spec(tmp_path / "data", tokenizer=str(remote.tokenizer)), tmp_path / "other")
    feed(local.path, tokens=sys.maxsize, progress=lambda _: None)
    assert content(local.path) == content(remote.path)
