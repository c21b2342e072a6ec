from pathlib import Path

import pytest

from stoker.data.sources import format_of


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("a.txt", "text"),
        ("a.md.gz", "text"),
        ("README", "text"),
        ("archive.json.py", "text"),
        ("a.JSONL", "jsonl"),
        ("a.ndjson.zst", "jsonl"),
        ("a.b.json.gz", "json"),
        ("a.csv", "csv"),
        ("a.tsv.gz", "csv"),
        ("a.parquet", "parquet"),
    ],
)
def test_the_suffix_gives_the_format_and_anything_else_is_text(name: str, format: str) -> None:
    assert format_of(Path(name)) == format
