import os
from pathlib import Path

import pytest

from stoker.data.files import DataFile, covers, discover, exists, fingerprint
from stoker.spec.errors import UserError


def names(*paths: Path | str) -> list[str]:
    return [name for _, name in discover([str(path) for path in paths])]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.txt", "a.txt", "sub/c.txt", "sub/deep/d.md", ".hidden", ".git/config", "empty.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("" if name == "empty.txt" else name)
    return tmp_path


def test_a_folder_gives_its_files_sorted_without_hidden_and_empty_ones(folder: Path) -> None:
    assert names(folder) == ["a.txt", "b.txt", "sub/c.txt", "sub/deep/d.md"]


def test_globs_files_and_folders_mix_and_no_file_counts_twice(folder: Path) -> None:
    assert names(f"{folder}/*.txt") == ["a.txt", "b.txt"]
    assert names(f"{folder}/**/*.txt") == ["a.txt", "b.txt", "sub/c.txt"]
    assert names(folder / "b.txt", folder / "sub", f"{folder}/**/*.txt") == ["b.txt", "c.txt", "deep/d.md", "a.txt"]


def test_a_file_whose_name_looks_like_a_glob_is_itself(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").write_text("x")
    assert names(tmp_path / "a[1].txt") == ["a[1].txt"]


def test_missing_and_empty_files_are_refused_by_name(folder: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.txt does not exist"):
        discover(f"{folder}/nowhere.txt")
    with pytest.raises(UserError, match=r"no text found in .*\*\.csv"):
        discover(f"{folder}/*.csv")
    with pytest.raises(UserError, match=r"empty\.txt is empty"):
        discover(f"{folder}/empty.txt")


def look(folder: Path, cache: Path) -> list[DataFile]:
    return fingerprint(discover(str(folder)), cache=cache, threads=2, progress=lambda *_: None)


def test_a_file_is_read_once_and_again_only_when_it_changed(tmp_path: Path) -> None:
    data, cache = tmp_path / "data", tmp_path / "hashes.json"
    data.mkdir()
    (data / "a.txt").write_text("one")
    (data / "b.txt").write_text("two")
    first = look(data, cache)
    cache.write_text(cache.read_text().replace(first[0].sha256, "f" * 64))
    assert [file.sha256 for file in look(data, cache)] == ["f" * 64, first[1].sha256]
    os.utime(data / "a.txt", ns=(1, 1))
    assert [file.sha256 for file in look(data, cache)] == [file.sha256 for file in first]
    (data / "b.txt").write_text("six")
    assert look(data, cache)[1].sha256 != first[1].sha256


def test_the_problem_of_a_file_is_cached_too(tmp_path: Path) -> None:
    data, cache = tmp_path / "data", tmp_path / "hashes.json"
    data.mkdir()
    (data / "a.bin").write_bytes(b"\x7fELF\0")
    (data / "b.csv").write_bytes(b"\xff")  # a format that is judged record by record
    for _ in range(2):
        assert [file.problem for file in look(data, cache)] == ["is not text: it has a NUL byte at byte 4", None]


def test_a_damaged_cache_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.txt").write_text("one")
    (tmp_path / "hashes.json").write_text("{")
    assert len(look(tmp_path / "data", tmp_path / "hashes.json")) == 1


@pytest.mark.parametrize(
    ("location", "file"),
    [
        (".", "runs/tale/spec.yaml"),
        ("runs", "runs/tale/spec.yaml"),
        ("*", "runs/tale/spec.yaml"),
        ("r*/*", "runs/tale/logs/rank-0.log"),
        ("**/*.jsonl", "runs/tale/metrics.jsonl"),
        ("**", "runs/tale/metrics.jsonl"),
        ("*/*/*.jsonl", "runs/tale/metrics.jsonl"),
        (".", ".runs/tale/spec.yaml"),
        ("**/*.yaml", ".runs/tale/spec.yaml"),
        (".runs/*", ".runs/tale/spec.yaml"),
        ("*.jsonl", "runs/tale/metrics.jsonl"),
        ("*/*.jsonl", "runs/tale/metrics.jsonl"),
        ("**/*.txt", "runs/tale/metrics.jsonl"),
        ("sub", "runs/tale/spec.yaml"),
        ("a.txt", "runs/tale/spec.yaml"),
    ],
)
def test_a_file_is_covered_before_it_exists_as_it_is_found_when_it_is(folder: Path, location: str, file: str) -> None:
    path = folder / file
    predicted = covers(f"{folder}/{location}", path)
    path.parent.mkdir(parents=True)
    path.write_text("x")
    assert (path in dict(discover([f"{folder}/{location}", str(folder / "a.txt")]))) is predicted


def test_a_link_to_a_folder_covers_its_files(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    link = tmp_path_factory.mktemp("links") / "link"
    link.symlink_to(folder)
    assert covers(str(link), folder / "runs/tale/spec.yaml")
    assert not covers(str(folder / "sub"), link / "runs/tale/spec.yaml")


def test_missing_paths_are_told_apart_from_existing_ones(folder: Path) -> None:
    assert [exists(f"{folder}/{location}") for location in ("a.txt", "sub", "*.txt", "**/d.md")] == [True] * 4
    assert [exists(f"{folder}/{location}") for location in ("gone.txt", "gone", "*.csv")] == [False] * 3
