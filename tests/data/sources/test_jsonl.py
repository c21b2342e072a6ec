import gzip
import json
from pathlib import Path

import pytest

from stoker.data.sources.jsonl import spans
from stoker.spec.errors import UserError


def test_each_line_is_a_document(tmp_path: Path, documents) -> None:
    texts = ["one", "two\nlines", "Grüße", "", "x" * 200_000]
    lines = [json.dumps({"id": i, "body": text}) for i, text in enumerate(texts)]
    (tmp_path / "a.jsonl").write_text("\n\n".join(lines))
    assert documents(tmp_path / "a.jsonl", field="body") == (texts, 0)
    (tmp_path / "b.ndjson.gz").write_bytes(gzip.compress("\r\n".join(lines).encode()))
    assert documents(tmp_path / "b.ndjson.gz", field="body") == (texts, 0)


def test_spans_give_every_line_once(tmp_path: Path, documents) -> None:
    texts = [f"line {i} " * (i % 50) for i in range(5000)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    for target in (1000, 4097, 100_000):
        assert len(spans(path, path.stat().st_size, target)) > 5
        assert documents(path, target=target) == (texts, 0)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{not json", "is not JSON: Expecting property name"),
        ('{"body": "x"}', "has no field 'text' (it has: body)"),
        ('{"text": 3}', "has no text in field 'text' but int"),
        ('"text"', "is not an object"),
        ('{"text": "\\ud800"}', "half a surrogate pair"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_bad_line_is_named_by_its_number_or_left_out(tmp_path: Path, documents, line: str, problem: str) -> None:
    good = [json.dumps({"text": f"text {i}"}) for i in range(300)]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join([*good[:250], line, *good[250:]]))
    for target in (1000, 1 << 20):
        with pytest.raises(UserError) as error:
            documents(path, target=target)
        assert error.value.problem.startswith(f"{path}, line 251: ")
        assert problem in error.value.problem
        assert "--skip-bad" in error.value.remedy
        assert documents(path, skip=True, target=target) == ([f"text {i}" for i in range(300)], 1)


def test_a_line_that_is_not_utf8_is_bad(tmp_path: Path, documents) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n{"text": "\xff"}\n')
    with pytest.raises(UserError, match="line 2: is not UTF-8 at column 11"):
        documents(tmp_path / "a.jsonl")
    assert documents(tmp_path / "a.jsonl", skip=True) == (["a"], 1)


def test_a_byte_order_mark_moves_no_span(tmp_path: Path, documents) -> None:
    texts = [f"line {i}" for i in range(2000)]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + "".join(json.dumps({"text": text}) + "\n" for text in texts).encode())
    assert documents(path, target=1000) == (texts, 0)
