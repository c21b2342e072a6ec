from pathlib import Path

from stoker.supervise.output.log_file import LogFile


def texts(path: Path) -> list[str]:
    return [line[25:] for line in path.read_text().splitlines()]


def test_a_long_log_is_rotated_and_the_oldest_file_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    log = LogFile(path, note=print, max_bytes=1000)
    for number in range(100):
        log.write(f"line {number:03d} {'x' * 66}\n".encode())  # 100 bytes with the stamp
    log.close()
    files = [path, *(tmp_path / f"rank-0.log.{number}" for number in (1, 2, 3))]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert [len(texts(file)) for file in files] == [10, 10, 10, 10]
    kept = [line for file in reversed(files) for line in texts(file)]
    assert [line[5:8] for line in kept] == [f"{number:03d}" for number in range(60, 100)]


def test_a_log_is_rotated_by_the_next_attempt_too(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    for attempt in range(3):
        log = LogFile(path, note=print, max_bytes=60)
        log.write(f"attempt {attempt} {'x' * 40}\n".encode())
        log.close()
    assert texts(path)[0].startswith("attempt 2")
    assert texts(tmp_path / "rank-0.log.2")[0].startswith("attempt 0")


def test_a_line_that_a_kill_has_cut_is_ended_first(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    path.write_bytes(b"2026-11-15T04:57:26.123Z half a li")
    log = LogFile(path, note=print)
    log.write(b"new\n")
    log.close()
    assert texts(path) == ["half a li", "new"]


def test_a_missing_folder_is_created_or_reported_once(tmp_path: Path) -> None:
    notes: list[str] = []
    log = LogFile(tmp_path / "logs" / "rank-0.log", note=notes.append)
    log.write(b"one\n")
    assert texts(tmp_path / "logs" / "rank-0.log") == ["one"]
    log.close()
    unwritable = LogFile(tmp_path / "no" / "such" / "rank-0.log", note=notes.append)
    unwritable.write(b"one\n")
    unwritable.write(b"two\n")
    assert notes == ["rank-0.log cannot be written (No such file or directory): lines are missing in it"]
