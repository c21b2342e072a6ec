import gzip
import random
from pathlib import Path

import pyarrow as pa
import pytest

from stoker.data.sources.text import Checker, spans


def test_a_file_is_one_document_whatever_its_length(tmp_path: Path, documents) -> None:
    text = "".join(f"Zeile {i}: Grüße aus 東京\n" for i in range(30_000))
    (tmp_path / "a.txt").write_text(text)
    assert documents(tmp_path / "a.txt") == ([text], 0)


def test_spans_of_a_long_file_join_to_the_whole(tmp_path: Path, documents) -> None:
    seed = random.randrange(10**9)
    print(f"{seed=}")
    draw = random.Random(seed)
    for alphabet in ("ab.\n", "東é🙂\n", "東é🙂"):
        text = "".join(draw.choices(alphabet, k=400_000))
        (tmp_path / "a.txt").write_text(text)
        for target in (60_000, 100_001):
            file_spans = spans(tmp_path / "a.txt", (tmp_path / "a.txt").stat().st_size, target)
            assert len(file_spans) > 2
            assert documents(tmp_path / "a.txt", target=target) == ([text], 0)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_compressed_text_reads_the_same(tmp_path: Path, documents, suffix: str) -> None:
    text = "Grüße\n" * 100_000
    path = tmp_path / f"a.txt{suffix}"
    with pa.output_stream(str(path), compression="detect") as file:
        file.write(text.encode())
    assert documents(path) == ([text], 0)


def test_gzip_files_written_one_after_the_other_are_one_text(tmp_path: Path, documents) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one ") + gzip.compress(b"two"))
    assert documents(tmp_path / "a.txt.gz") == (["one two"], 0)


def test_a_byte_order_mark_is_no_text(tmp_path: Path, documents) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfhello")
    assert documents(tmp_path / "a.txt") == (["hello"], 0)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"plain", None),
        ("Grüße 🙂".encode(), None),
        (b"ab\0c", "NUL byte at byte 2"),
        (b"abc\xff", "byte 3 is 0xff"),
        ("Grüße".encode("latin-1"), "byte 2 is 0xfc"),
        ("ende ü".encode()[:-1], "byte 5 is 0xc3"),
    ],
)
def test_the_checker_knows_where_text_stops_being_text(content: bytes, problem: str | None) -> None:
    for size in (1, 2, 100):
        checker = Checker()
        for start in range(0, len(content), size):
            checker.feed(content[start : start + size])
        checker.feed(b"", final=True)
        assert (problem in checker.problem) if problem and checker.problem else checker.problem is problem
