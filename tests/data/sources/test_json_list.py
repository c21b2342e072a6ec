import gzip
import json
import tracemalloc
from pathlib import Path

import pytest

from stoker.data.sources import json_list
from stoker.data.sources.document import BadRecords, Span
from stoker.spec.errors import UserError

TEXTS = ["one", 'with "quotes" and \\', "Grüße 東京", "", "] , {", "x" * 600_000, "end"]
RECORDS = [{"n": i / 3, "text": text, "tags": [{"data": [1]}]} for i, text in enumerate(TEXTS)]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("ascii", [True, False])
@pytest.mark.parametrize(
    "content", [RECORDS, {"data": RECORDS}, {"version": 1.5, "meta": {"data": []}, "data": RECORDS, "more": 1}]
)
def test_the_records_of_the_list_are_the_documents(tmp_path: Path, documents, content, ascii: bool, indent) -> None:
    text = json.dumps(content, ensure_ascii=ascii, indent=indent)
    (tmp_path / "a.json").write_text(text)
    assert documents(tmp_path / "a.json") == (TEXTS, 0)
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(text.encode()))
    assert documents(tmp_path / "b.json.gz") == (TEXTS, 0)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"items": []}', 'has no list under "data"'),
        ('{"data": {"text": "x"}}', 'has no list under "data"'),
        ('{"text": "a"}\n{"text": "b"}', 'has no list under "data"'),
        ("3", "'{' expected at byte 0"),
        ("   ", "ends before its list does"),
        ('{"data": [{"text": "a"}', "ends before its list does"),
        ('{"data": [{"text": "a"}, {"text": "b]}', "record 2: is not JSON: Unterminated string"),
        (
            '{"data": [{"text": "ä"}, {"text": oops}' + " " * 100 + "]}",
            "record 2: is not JSON: Expecting value at byte 35",
        ),
    ],
)
def test_other_json_is_refused(tmp_path: Path, documents, content: str, problem: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(UserError) as error:
        documents(tmp_path / "a.json")
    assert str(tmp_path / "a.json") in error.value.problem
    assert problem in error.value.problem
    assert documents(tmp_path / "a.json", skip=True)[1] == 1


def test_a_record_without_the_field_is_named_or_left_out(tmp_path: Path, documents) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"data": [{"text": "a"}, {"body": "b"}, {"text": "c"}]}))
    with pytest.raises(UserError, match=r"a\.json, record 2: has no field 'text' \(it has: body\)"):
        documents(tmp_path / "a.json")
    assert documents(tmp_path / "a.json", skip=True) == (["a", "c"], 1)


def test_bytes_that_are_not_utf8_are_named_by_their_place(tmp_path: Path, documents) -> None:
    (tmp_path / "a.json").write_bytes(b'[{"text": "\xff"}]')
    with pytest.raises(UserError, match="byte 11 is 0xff"):
        documents(tmp_path / "a.json")


def test_memory_does_not_grow_with_the_list(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with open(path, "w") as file:
        file.write('{"data": [')
        for i in range(20_000):
            file.write((", " if i else "") + json.dumps({"text": "some text " * 100}))
        file.write("]}")
    tracemalloc.start()
    for _ in json_list.pieces(path, Span(size=0), "text", BadRecords(skip=False)):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size > 20_000_000
    assert peak < 4_000_000
