"""One record is held in memory whole, so its length is limited: it is named, or left out, and the others are read."""

import builtins
import gzip
import io
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker.data.files import discover, text_problem
from stoker.data.sources import source_of
from stoker.data.sources.document import MAX_RECORD_BYTES, BadRecords
from stoker.data.sources.stream import UNCHECKED_BYTES, line_starts
from stoker.spec.errors import UserError

LONG = "a" * (MAX_RECORD_BYTES + 1000)


class Counting(io.BytesIO):
    """Knows how much of it was read."""

    bytes = 0

    def readline(self, size: int | None = -1, /) -> "builtins.bytes":
        line = super().readline(size)
        self.bytes += len(line)
        return line


def quoted(text: str) -> str:
    return json.dumps({"text": text})


@pytest.mark.parametrize(
    ("name", "content", "where", "kept"),
    [
        ("a.jsonl", f"{quoted('one')}\n{quoted(LONG)}\n{quoted('two')}\n", "line 2", ["one", "two"]),
        ("a.jsonl", LONG, "line 1", []),
        ("a.json", f'{{"data": [{quoted("one")}, {quoted(LONG)}, {quoted("two")}]}}', "record 2", ["one"]),
        ("a.json", f'{{"about": {quoted(LONG)}, "data": [{quoted("one")}]}}', "", []),
        ("a.csv", f"text\none\n{LONG}\ntwo\n", "line 3", ["one", "two"]),
        ("a.csv", f'text\none\n"{LONG}"\ntwo\n', "line 3", ["one", "two"]),
        ("a.csv", "text,b\none,2\n" + "3" + f',"{"b" * 1000}\n"' * 34_000, "line", ["one"]),
    ],
    ids=["line", "only line", "record", "skipped key", "row", "quoted row", "row of many lines"],
)
def test_a_record_that_is_too_long_is_named_or_left_out(
    tmp_path: Path, documents, name: str, content: str, where: str, kept: list[str]
) -> None:
    for file, data in (
        (tmp_path / name, content.encode()),
        (tmp_path / f"{name}.gz", gzip.compress(content.encode(), 1)),
    ):
        file.write_bytes(data)
        with pytest.raises(UserError) as refused:
            documents(file)
        assert refused.value.problem.startswith(f"{file}{', ' if where else ':'}{where}")
        assert "is longer than 32 MiB" in refused.value.problem
        assert "Split it into several records" in refused.value.remedy
        texts, skipped = documents(file, skip=True)
        assert [text for text in texts if text.isalpha()] == kept
        assert skipped >= 1


def test_a_line_without_an_end_does_not_decide_where_a_span_begins(tmp_path: Path, documents) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"{quoted('one')}\n{quoted(LONG)}\n{quoted('two')}\n" * 2)
    assert documents(path, skip=True, target=MAX_RECORD_BYTES // 3) == (["one", "two"] * 2, 2)
    content = path.read_bytes()
    reader = Counting(content)
    starts = set(line_starts(reader, range(1000, len(content), 1 << 20)))
    assert starts
    assert all(content[start - 1 : start] == b"\n" for start in starts)
    assert reader.bytes <= len(content) + len(starts)


def test_text_without_a_line_end_may_have_any_length(tmp_path: Path, documents) -> None:
    (tmp_path / "a.txt").write_text(LONG)
    assert documents(tmp_path / "a.txt") == ([LONG], 0)


def test_a_long_cell_of_a_parquet_file_is_named_or_left_out(tmp_path: Path, documents) -> None:
    alone, among = tmp_path / "alone.parquet", tmp_path / "among.parquet"
    pq.write_table(pa.table({"text": [LONG]}), alone, use_dictionary=False)
    pq.write_table(pa.table({"text": ["one", LONG, "two", None]}), among)
    with pytest.raises(UserError, match=r"alone.parquet, row group 0: a row of it is longer than 32 MiB.* Split it"):
        documents(alone)
    with pytest.raises(UserError, match=r"among.parquet, row group 0, row 2: is longer than 32 MiB.* Split it"):
        documents(among)
    assert documents(alone, skip=True) == ([], 1)
    assert documents(among, skip=True) == (["one", "two"], 2)


def test_a_cell_that_thousands_of_rows_share_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    shared = pa.DictionaryArray.from_arrays(pa.array([0] * 4000, pa.int32()), ["a" * (8 << 20)])
    pq.write_table(pa.table({"text": shared}), path)
    before = pa.total_allocated_bytes()
    source = source_of("parquet")
    (span,) = source.spans(path, path.stat().st_size, 1 << 30)
    for number, _ in enumerate(source.pieces(path, span, "text", BadRecords(skip=False))):
        assert pa.total_allocated_bytes() - before < 600 << 20
        if number > 1000:
            break


def test_a_cell_that_is_not_utf8_is_named_or_left_out(tmp_path: Path, documents) -> None:
    path = tmp_path / "a.parquet"
    cells = pa.array([b"one", b"tw\xff", b"three"]).cast(pa.string(), safe=False)
    for dictionary in (True, False):
        pq.write_table(pa.table({"text": cells}), path, use_dictionary=dictionary)
        with pytest.raises(UserError, match=r"row 2: is not UTF-8 text in column 'text': byte 2 is 0xff"):
            documents(path)
        assert documents(path, skip=True) == (["one", "three"], 1)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_a_number_of_too_many_digits_is_a_bad_record(tmp_path: Path, documents, name: str) -> None:
    record = f'{{"text": "one", "id": {"9" * 5000}}}'
    (tmp_path / name).write_text(record if name == "a.jsonl" else f"[{record}]")
    with pytest.raises(UserError, match="has a number that is too long"):
        documents(tmp_path / name)


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_a_file_that_unpacks_without_end_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.txt.{kind}"
    with pa.CompressedOutputStream(str(path), {"gz": "gzip", "zst": "zstd"}[kind]) as out:
        for _ in range(3 * UNCHECKED_BYTES >> 20):
            out.write(b"a" * (1 << 20))
    with pytest.raises(UserError, match="unpacks to more than 200 times its size"):
        text_problem(path, "text")


def test_a_message_lists_the_fields_that_help(tmp_path: Path, documents) -> None:
    fields = {f"{n}{'x' * 100}": 1 for n in range(1000)}
    (tmp_path / "a.jsonl").write_text(json.dumps(fields))
    with pytest.raises(UserError) as refused:
        documents(tmp_path / "a.jsonl")
    assert "(it has: 0xxx" in str(refused.value)
    assert len(str(refused.value)) < 2000


def test_a_pipe_or_device_that_is_named_as_data_is_called_so(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "loop.txt").symlink_to("loop.txt")
    for path, message in (
        (str(tmp_path / "pipe.txt"), "is a pipe, not a regular file"),
        ("/dev/zero", "is a device, not a regular file"),
        (str(tmp_path / "loop.txt"), "Too many levels of symbolic links"),
        (str(tmp_path / "gone.txt"), "does not exist"),
    ):
        with pytest.raises(UserError, match=message):
            discover(path)
    with pytest.raises(UserError, match="no text found"):
        discover(str(tmp_path))
