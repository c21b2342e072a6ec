"""Downloads to a file."""

from collections.abc import Iterator
from pathlib import Path

from stoker.data.remote.transfer import copy


def test_a_partial_file_that_is_too_long_is_fetched_from_the_start(tmp_path: Path) -> None:
    file = tmp_path / "file.part"
    file.write_bytes(b"longer than the file")

    def read(start: int) -> Iterator[bytes]:
        yield b"content"[start:]

    assert sum(copy(read, file, size=7, name="file")) == 7
    assert file.read_bytes() == b"content"
