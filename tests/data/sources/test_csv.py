import csv
import gzip
from pathlib import Path

import pytest

from stoker.spec.errors import UserError

TEXTS = ["one", 'two, with "quotes"', "three\nlines\r\nhere", "Grüße", "x" * 300_000]


@pytest.mark.parametrize(
    ("name", "delimiter"), [("a.csv", ","), ("a.tsv", "\t"), ("a.csv.gz", ","), ("a.tsv.gz", "\t")]
)
def test_one_column_is_the_text(tmp_path: Path, documents, name: str, delimiter: str) -> None:
    path = tmp_path / name
    with (gzip.open if name.endswith("gz") else open)(path, "wt", newline="", encoding="utf-8-sig") as file:
        csv.writer(file, delimiter=delimiter).writerows([["body", "id"], *([text, 1] for text in TEXTS)])
    assert documents(path, field="body") == (TEXTS, 0)


def test_a_file_without_the_column_names_those_it_has(tmp_path: Path, documents) -> None:
    (tmp_path / "a.csv").write_text("id,body\n1,x\n")
    with pytest.raises(UserError, match=r"a\.csv, line 1: the header has no column 'text' \(it has: id, body\)"):
        documents(tmp_path / "a.csv")
    assert documents(tmp_path / "a.csv", skip=True) == ([], 1)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (b"1", "has 1 columns"),
        (b"1,\xff", "is not UTF-8 text"),
        (b'1,"a"b', "expected after"),
    ],
)
def test_a_bad_row_is_named_by_its_line_or_left_out(tmp_path: Path, documents, row: bytes, problem: str) -> None:
    (tmp_path / "a.csv").write_bytes(b'id,text\n1,"two\nlines"\n' + row + b"\n2,last\n")
    with pytest.raises(UserError, match="line 4") as error:
        documents(tmp_path / "a.csv")
    assert problem in error.value.problem
    assert documents(tmp_path / "a.csv", skip=True) == (["two\nlines", "last"], 1)
