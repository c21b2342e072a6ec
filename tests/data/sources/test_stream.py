import gzip
from pathlib import Path

import pytest

from stoker.spec.errors import UserError


@pytest.mark.parametrize(
    "content", [b"no gzip at all", gzip.compress(b"text " * 10_000)[:-40]], ids=["no gzip", "cut short"]
)
def test_an_incomplete_compressed_file_is_refused_by_name(tmp_path: Path, documents, content: bytes) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"a\.jsonl\.gz"):
        documents(path, skip=True)
