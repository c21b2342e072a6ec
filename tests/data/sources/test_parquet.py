from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker.data.sources.parquet import spans
from stoker.spec.errors import UserError


def test_one_column_is_the_text_and_row_groups_are_the_spans(tmp_path: Path, documents) -> None:
    texts = [f"Grüße {i} " * (i % 30) for i in range(5000)]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": range(5000), "body": texts}), path, row_group_size=300)
    size = path.stat().st_size
    row_group_spans = spans(path, size, size // 5)
    assert 4 <= len(row_group_spans) <= 6
    assert (row_group_spans[0].start, row_group_spans[-1].stop) == (0, 17)
    for target in (1, size // 5, size):
        assert documents(path, field="body", target=target) == (texts, 0)


def test_a_file_without_the_column_names_those_it_has(tmp_path: Path, documents) -> None:
    pq.write_table(pa.table({"id": [1], "body": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a\.parquet has no column 'text' \(it has: id, body\)"):
        documents(tmp_path / "a.parquet")


def test_a_row_without_text_is_named_or_left_out(tmp_path: Path, documents) -> None:
    pq.write_table(pa.table({"text": ["a", "b", None, "d"]}), tmp_path / "a.parquet", row_group_size=2)
    with pytest.raises(UserError, match="row group 1, row 1: has no text in column 'text'"):
        documents(tmp_path / "a.parquet")
    assert documents(tmp_path / "a.parquet", skip=True) == (["a", "b", "d"], 1)


def test_a_file_that_is_not_parquet_is_refused(tmp_path: Path, documents) -> None:
    (tmp_path / "a.parquet").write_text("no")
    with pytest.raises(UserError, match="cannot be read as Parquet"):
        documents(tmp_path / "a.parquet")
