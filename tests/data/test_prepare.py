import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from stoker.data.bert.pairs import Pairs
from stoker.data.prepare import PrepareProgress, is_prepared, prepare, prepared
from stoker.data.shards import TokenSet
from stoker.spec.data import Data, TrainTokenizer
from stoker.spec.errors import UserError
from tests.waiting import until

WORDS = ["stoker", "feeds", "the", "fire", "Grüße", "漢字", "x = 1", "don't", "\n", "\r\n", "  ", "\n\n", "end."]


def prose(size: int, seed: int = 0) -> str:
    draw = random.Random(seed)
    return " ".join(draw.choices(WORDS, k=size // 5))


def spec(path: Path | list[str], train: int | None = 300, **settings: object) -> Data:
    tokenizer = TrainTokenizer(train=train) if train else None
    return Data(path=path if isinstance(path, list) else str(path), **{"tokenizer": tokenizer, **settings})  # type: ignore[arg-type]


def stream(tokens: TokenSet) -> np.ndarray:
    """All tokens in the order of the data, training and held-out."""
    parts = []
    for number in range(10_000):
        files = [tokens.path / f"{split}-{number:05d}.bin" for split in ("train", "validation")]
        if not files[0].is_file():
            return np.concatenate(parts)
        parts += [np.fromfile(file, tokens.index.dtype) for file in files if file.is_file()]
    raise AssertionError


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name[0] != "."}


def raw(tokens: TokenSet, texts: list[str]) -> list[int]:
    tokenizer = Tokenizer.from_file(str(tokens.tokenizer / "tokenizer.json"))
    return [id for text in texts for id in [*tokenizer.encode(text).ids, tokens.end]]


@pytest.mark.slow
def test_the_tokens_are_those_of_the_whole_documents_joined_by_the_end_token(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    texts = [prose(20), prose(2_200_000), "", prose(500_000, seed=1), "last"]
    for number, text in enumerate(texts):
        (data / f"{number}.txt").write_bytes(text.encode())
    tokens = prepare(spec(data), tmp_path / "out", workers=1)
    expected = raw(tokens, [text for text in texts if text])
    assert len(tokens.index.train) > 2
    assert stream(tokens).tolist() == expected
    index = tokens.index
    assert (index.documents, index.bytes, index.skipped) == (4, sum(len(text.encode()) for text in texts), 0)
    assert (tokens.vocab, index.trained, index.dtype) == (300, 300, "uint16")
    assert abs(tokens.validation.tokens / len(expected) - 0.01) < 0.001
    tokens.verify()


def test_every_format_gives_the_same_tokens(tmp_path: Path) -> None:
    texts = [prose(2000, seed) for seed in range(20)]
    for name in ("txt", "jsonl", "json", "csv", "parquet", "gz"):
        (tmp_path / name).mkdir()
    for number, text in enumerate(texts):
        (tmp_path / f"txt/{number:02d}.txt").write_bytes(text.encode())
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (tmp_path / "jsonl/a.jsonl").write_text(lines)
    (tmp_path / "gz/a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "json/a.json").write_text(json.dumps({"data": [{"text": text} for text in texts]}))
    pq.write_table(pa.table({"text": texts}), tmp_path / "parquet/a.parquet")
    rows = "".join('"' + text.replace('"', '""') + '"\n' for text in texts)
    (tmp_path / "csv/a.csv").write_bytes(("text\n" + rows).encode())
    streams = [
        stream(prepare(spec(tmp_path / name), tmp_path / "out" / name))
        for name in ("txt", "jsonl", "json", "csv", "parquet", "gz")
    ]
    assert all(np.array_equal(streams[0], other) for other in streams[1:])


@pytest.mark.slow
def test_workers_change_the_time_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(prose(4_500_000).encode())
    by_one = prepare(spec(tmp_path / "a.txt"), tmp_path / "one", workers=1)
    by_two = prepare(spec(tmp_path / "a.txt"), tmp_path / "two", workers=2)
    assert content(by_one.path) == content(by_two.path)


def test_progress_rises_to_the_whole(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt.gz"):
        text = prose(1_200_000).encode()
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    reports: list[PrepareProgress] = []
    tokens = prepare(spec([f"{tmp_path}/*"]), tmp_path / "out", workers=1, progress=reports.append)
    assert list(dict.fromkeys(p.phase for p in reports)) == ["reading", "tokenizer", "tokens"]
    last = [p for p in reports if p.phase == "tokens"]
    assert [p.done for p in last] == sorted(p.done for p in last)
    assert last[-1].done == last[-1].total == sum(path.stat().st_size for path in tmp_path.glob("*.*"))
    assert last[-1].tokens == tokens.train.tokens + tokens.validation.tokens


SCRIPT = """
import sys
from pathlib import Path
from stoker.data.prepare import prepare
from stoker.spec.data import Data, TrainTokenizer

def show(progress):
    print(progress.phase, progress.done / max(1, progress.total), flush=True)

if __name__ == "__main__":
    data = Data(path=sys.argv[1], tokenizer=TrainTokenizer(train=300))
    prepare(data, Path(sys.argv[2]), workers=int(sys.argv[3]), progress=show)
"""


def start(tmp_path: Path, data: Path, out: Path, *, workers: int) -> subprocess.Popen[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    argv = [sys.executable, str(script), str(data), str(out), str(workers)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
@pytest.mark.parametrize("signal_name", ["SIGKILL", pytest.param("SIGINT", marks=pytest.mark.soak)])
def test_a_prepare_stopped_at_any_moment_resumes_with_the_same_result(tmp_path: Path, signal_name: str) -> None:
    (tmp_path / "a.txt").write_bytes(prose(7_000_000).encode())
    undisturbed = prepare(spec(tmp_path / "a.txt"), tmp_path / "whole", workers=2)
    seed = random.randrange(10**9)
    print(f"{seed=}")
    draw, out = random.Random(seed), tmp_path / "out"
    for phase, share in (("tokenizer", 0.0), ("tokens", draw.uniform(0.1, 0.4)), ("tokens", draw.uniform(0.4, 0.6))):
        process = start(tmp_path, tmp_path / "a.txt", out, workers=2)
        assert process.stdout
        for line in process.stdout:
            if line.split()[0] == phase and float(line.split()[1]) >= share:
                break
        started = children(process.pid)
        time.sleep(draw.random() * 0.1)
        os.kill(process.pid, signal.Signals[signal_name])
        process.communicate(timeout=60)
        assert not (out / "index.json").exists()
        with pytest.raises(UserError, match="not a complete token set"):
            TokenSet.open(out)
        until(lambda pids=started: not any(Path(f"/proc/{pid}").exists() for pid in pids), seconds=60, every_s=0.05)
    done_before = {path.name: path.stat().st_mtime_ns for path in (out / "units").iterdir()}
    shards_before = {name: (out / f"train-{name[:5]}.bin").stat().st_mtime_ns for name in done_before}
    resumed = prepare(spec(tmp_path / "a.txt"), out, workers=2)
    assert content(resumed.path) == content(undisturbed.path)
    assert done_before
    for name, time_ns in shards_before.items():
        assert (out / f"train-{name[:5]}.bin").stat().st_mtime_ns == time_ns


@pytest.mark.parametrize("pairs", [None, Pairs(length=32)])
def test_a_prepare_of_other_data_in_the_same_folder_uses_its_own_tokenizer(tmp_path: Path, pairs: Pairs | None) -> None:
    def interrupt(progress: PrepareProgress) -> None:
        if progress.phase == "tokens":
            raise KeyboardInterrupt

    (tmp_path / "a.txt").write_text(prose(100_000))
    with pytest.raises(KeyboardInterrupt):
        prepare(spec(tmp_path / "a.txt"), tmp_path / "out", pairs=pairs, workers=1, progress=interrupt)
    (tmp_path / "a.txt").write_text(prose(100_000)[::-1])
    prepare(spec(tmp_path / "a.txt"), tmp_path / "out", pairs=pairs, workers=1)
    prepare(spec(tmp_path / "a.txt"), tmp_path / "fresh", pairs=pairs, workers=1)
    assert content(tmp_path / "out") == content(tmp_path / "fresh")


def test_two_prepares_of_the_same_data_share_one_result(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(prose(2_000_000).encode())
    both = [start(tmp_path, tmp_path / "a.txt", tmp_path / "out", workers=1) for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted("tokens " in output for output in outputs) == [False, True]
    TokenSet.open(tmp_path / "out").verify()


def test_the_same_data_is_prepared_once_even_when_it_moves(tmp_path: Path) -> None:
    store = tmp_path / "store"
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.txt").write_text(prose(10_000))
    first = prepared(spec(tmp_path / "data"), store)
    (tmp_path / "data").rename(tmp_path / "moved")
    reports: list[PrepareProgress] = []
    second = prepared(spec(tmp_path / "moved"), store, progress=reports.append)
    assert (second.path, second.key) == (first.path, first.key)
    assert first.path == store / first.key
    assert {p.phase for p in reports} == {"reading"}


def test_whatever_changes_the_tokens_changes_the_key(tmp_path: Path) -> None:
    store, data = tmp_path / "store", tmp_path / "data"
    data.mkdir()
    (data / "a.txt").write_text(prose(10_000))
    keys = [
        prepared(spec(data), store).key,
        prepared(spec(data, train=301), store).key,
        prepared(spec(data, validation=0.1), store).key,
        prepared(spec(data, tokenizer=str(prepared(spec(data), store).tokenizer)), store).key,
    ]
    (data / "a.txt").write_text(prose(10_000, seed=1))
    keys.append(prepared(spec(data), store).key)
    (data / "b.txt").write_text("more")
    keys.append(prepared(spec(data), store).key)
    assert len(set(keys)) == len(keys)


def test_a_prepared_folder_is_taken_as_it_is_with_its_own_tokenizer_only(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(prose(10_000))
    made = prepare(spec(tmp_path / "a.txt"), tmp_path / "out")
    other = prepare(spec(tmp_path / "a.txt", train=280), tmp_path / "other")
    assert is_prepared(spec(made.path))
    assert is_prepared(spec([str(made.path)]))
    assert not is_prepared(spec(tmp_path / "a.txt"))
    for tokenizer in (None, TrainTokenizer(train=300), str(made.tokenizer)):
        assert prepared(spec(made.path, tokenizer=tokenizer), tmp_path / "store").key == made.key
    for tokenizer in (TrainTokenizer(train=280), str(other.tokenizer)):
        with pytest.raises(UserError, match="not the tokenizer"):
            prepared(spec(made.path, tokenizer=tokenizer), tmp_path / "store")
    with pytest.raises(UserError, match="prepared token set already"):
        prepare(spec(made.path), tmp_path / "again")


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(prose(10_000))
    (tmp_path / "b.txt").write_text(prose(10_000, seed=1))
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.doc").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        prepare(spec(tmp_path / "a.txt"), tmp_path / "out")
    prepare(spec(tmp_path / "a.txt"), tmp_path / "set")
    prepare(spec(tmp_path / "a.txt"), tmp_path / "set")
    with pytest.raises(UserError, match="token set of other data"):
        prepare(spec(tmp_path / "b.txt"), tmp_path / "set")


def test_an_unfinished_set_of_data_that_was_fixed_starts_from_scratch(tmp_path: Path) -> None:
    good = json.dumps({"text": prose(1_500_000)})
    (tmp_path / "a.jsonl").write_text(f"{good}\n{good}\nnot json\n")
    with pytest.raises(UserError, match="line 3: is not JSON"):
        prepare(spec(tmp_path / "a.jsonl"), tmp_path / "out", workers=1)
    (tmp_path / "a.jsonl").write_text(f"{good}\n")
    tokens = prepare(spec(tmp_path / "a.jsonl"), tmp_path / "out", workers=1)
    assert content(tokens.path) == content(prepare(spec(tmp_path / "a.jsonl"), tmp_path / "new", workers=1).path)


def test_bad_records_and_files_are_left_out_and_counted_when_asked(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.jsonl").write_text('{"text": "good"}\nbad\n{"body": 1}\n')
    (data / "b.bin").write_bytes(b"\0\1\2")
    (data / "c.txt").write_bytes("Grüße".encode("latin-1"))
    (data / "d.txt").write_text("also good")
    for name, problem in (("a.jsonl", "line 2"), ("b.bin", "NUL byte"), ("c.txt", "not UTF-8 text: byte 2 is 0xfc")):
        with pytest.raises(UserError, match=problem) as error:
            prepare(spec(data / name), tmp_path / "none")
        assert name in error.value.problem
        assert "--skip-bad" in error.value.remedy
    tokens = prepare(spec(data, skip_bad=True), tmp_path / "out")
    assert (tokens.index.skipped, tokens.index.documents) == (4, 2)
    assert stream(tokens).tolist() == raw(tokens, ["good", "also good"])


def test_data_without_text_never_looks_complete(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n')
    with pytest.raises(UserError, match="the data has no text"):
        prepare(spec(tmp_path / "a.jsonl"), tmp_path / "out")
    assert not (tmp_path / "out/index.json").exists()


def test_large_vocabularies_take_wider_tokens(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ab ba abba " * 100)
    small = prepare(spec(tmp_path / "a.txt", train=260), tmp_path / "small")
    tokenizer = json.loads((small.tokenizer / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["far away"] = 70_000
    (tmp_path / "wide").mkdir()
    (tmp_path / "wide/tokenizer.json").write_text(json.dumps(tokenizer))
    wide = prepare(spec(tmp_path / "a.txt", tokenizer=str(tmp_path / "wide")), tmp_path / "out")
    assert (wide.index.dtype, wide.vocab) == ("uint32", 70_001)
    assert np.array_equal(stream(wide), stream(small))


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(UserError, match="cannot write"):
        prepare(spec(tmp_path / "a.txt"), tmp_path / "a.txt/out")
    (tmp_path / "store").mkdir()
    (tmp_path / "store/.hashes.json").mkdir()
    with pytest.raises(UserError, match="cannot write"):
        prepared(spec(tmp_path / "a.txt"), tmp_path / "store")


def test_a_full_disk_is_reported_and_finished_work_stays(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk: the kernel refuses the write in the same place."""
    (tmp_path / "a.txt").write_bytes(prose(4_500_000).encode())
    script = f"""
import resource, signal
from pathlib import Path
from stoker.data.prepare import prepare
from stoker.spec.data import Data, TrainTokenizer
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))
data = Data(path={str(tmp_path / "a.txt")!r}, tokenizer=TrainTokenizer(train=300))
prepare(data, Path({str(tmp_path / "out")!r}), workers=1)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "UserError: the disk is full for" in done.stderr
    assert not list((tmp_path / "out").glob("*.part"))
    prepare(spec(tmp_path / "a.txt"), tmp_path / "out", workers=1).verify()
