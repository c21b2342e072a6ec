from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.data.sources import format_of, source_of
from stoker.data.sources.document import BadRecords

Documents = Callable[..., tuple[list[str], int]]


@pytest.fixture
def documents() -> Documents:
    """(the documents of a file, whole; how many records were left out), read span by span."""

    def read(path: Path, *, field: str = "text", skip: bool = False, target: int = 1 << 30) -> tuple[list[str], int]:
        source, bad = source_of(format_of(path)), BadRecords(skip=skip)
        texts, text = [], ""
        for span in source.spans(path, path.stat().st_size, target):
            for piece in source.pieces(path, span, field, bad):
                text += piece.text
                if piece.last:
                    texts.append(text)
                    text = ""
        assert text == ""
        return texts, bad.skipped

    return read
