from pathlib import Path

import pytest

from stoker.rundir import RunDir, events
from stoker.rundir.logs import LogView, last_lines, ranks
from stoker.spec.errors import UserError


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path)
    for rank in (0, 1, 10):
        run.log(rank).parent.mkdir(exist_ok=True)
        run.log(rank).write_text("".join(f"line {i} of {rank}\n" for i in range(5)))
    (run.log(0).parent / "supervisor.log").touch()
    return run


def test_the_last_lines_of_a_long_log_are_found_from_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"{i} {'x' * 100}\n" for i in range(5000)) + "no newline")
    assert [line.split()[0] for line in last_lines(path, 3)] == ["4998", "4999", "no"]
    assert len(last_lines(path, 4000)) == 4000
    assert len(last_lines(path, 10**6)) == 5001
    assert last_lines(path, 0) == []
    assert last_lines(tmp_path / "none", 3) == []


def test_lines_have_their_rank_only_when_all_ranks_are_shown(run: RunDir) -> None:
    assert ranks(run) == [0, 1, 10]
    assert list(LogView(run, rank=1, tail=2).lines()) == ["line 3 of 1", "line 4 of 1"]
    lines = list(LogView(run, rank=None, tail=1).lines())
    assert lines == ["[0] line 4 of 0", "[1] line 4 of 1", "[10] line 4 of 10"]


@pytest.mark.parametrize("tail", [2, None])
def test_following_shows_each_new_line_once(run: RunDir, tail: int | None) -> None:
    view = LogView(run, rank=0, tail=tail)
    assert len(list(view.lines())) == (tail or 5)
    assert list(view.lines()) == []
    with run.log(0).open("a") as file:
        file.write("more\n")
    assert list(view.lines()) == ["more"]


def test_a_rank_without_a_log_is_refused_and_the_ranks_with_logs_are_named(run: RunDir) -> None:
    with pytest.raises(UserError, match=r"no log of rank 7\. It has logs of ranks 0, 1, 10"):
        LogView(run, rank=7, tail=None)


def test_of_very_many_ranks_a_few_are_named(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.add_event(events.World(attempt=1, workers=5000))
    with pytest.raises(UserError, match=r"logs of ranks 0, 1, 2, .*, 15, … 4999$"):
        LogView(run, rank=5000, tail=None)


def stamped(second: int, text: str) -> str:
    return f"2026-11-15T04:57:{second:02d}.250Z {text}\n"


def test_timestamps_are_removed_and_order_the_ranks(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.log(0).parent.mkdir()
    run.log(0).write_text(stamped(1, "a") + stamped(4, "d") + stamped(99, "with d"))
    run.log(1).write_text("before all\n" + stamped(2, "b") + stamped(3, "c\r") + stamped(5, ""))
    view = LogView(run, rank=None, tail=None)
    lines = ["[1] before all", "[0] a", "[1] b", "[1] c", "[0] d", "[0] 2026-11-15T04:57:99.250Z with d", "[1] "]
    assert list(view.lines()) == lines
    times = [record.time for record in LogView(run, rank=0, tail=None).records()]
    assert times == [1794718621.25, 1794718624.25, None]
    assert last_lines(run.log(0), 2) == ["d", "2026-11-15T04:57:99.250Z with d"]


def test_only_lines_printed_since_a_time_are_shown(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.log(0).parent.mkdir()
    run.log(0).write_text("without a time\n" + "".join(stamped(i, f"line {i}") + "more\n" for i in range(10)))
    view = LogView(run, rank=0, tail=None, since=1794718628.0)
    assert list(view.lines()) == ["line 8", "more", "line 9", "more"]
    assert list(LogView(run, rank=0, tail=2, since=1794718628.0).lines()) == ["line 9", "more"]
    assert list(LogView(run, rank=0, tail=9, since=1794718628.0).lines()) == ["line 8", "more", "line 9", "more"]


def rotate(run: RunDir, rank: int) -> None:
    """As a supervisor does with a log that is too long."""
    for name in ("2", "1"):
        if (old := run.log(rank).with_suffix(f".log.{name}")).exists():
            old.rename(run.log(rank).with_suffix(f".log.{int(name) + 1}"))
    run.log(rank).rename(run.log(rank).with_suffix(".log.1"))


def test_rotated_logs_are_read_as_one(run: RunDir) -> None:
    whole = run.log(0).read_text().splitlines()
    for number in range(3):
        rotate(run, 0)
        run.log(0).write_text(f"after {number}\n")
        whole.append(f"after {number}")
    assert ranks(run) == [0, 1, 10]
    assert list(LogView(run, rank=0, tail=None).lines()) == whole
    for tail in (0, 1, 3, 4, 7, 100):
        assert list(LogView(run, rank=0, tail=tail).lines()) == whole[len(whole) - min(tail, len(whole)) :]
        assert last_lines(run.log(0), tail) == whole[len(whole) - min(tail, len(whole)) :]


@pytest.mark.parametrize("tail", [None, 2])
@pytest.mark.parametrize("times", [1, 2])
def test_a_log_that_is_rotated_is_followed_without_a_gap(run: RunDir, tail: int | None, times: int) -> None:
    view = LogView(run, rank=0, tail=tail)
    assert len(list(view.lines(ended=False))) == (tail or 5)
    expected = []
    for number in range(times):
        with run.log(0).open("a") as file:
            file.write(f"last words {number}\n")
        rotate(run, 0)
        run.log(0).write_text(f"a new file {number}\n")
        expected += [f"last words {number}", f"a new file {number}"]
    assert list(view.lines(ended=False)) == expected
    assert list(view.lines(ended=False)) == []
    with run.log(0).open("a") as file:
        file.write("more\n")
    assert list(view.lines()) == ["more"]


@pytest.mark.parametrize("tail", [None, 0, 3])
def test_an_unfinished_line_is_held_back_while_the_run_is_running(run: RunDir, tail: int | None) -> None:
    with run.log(0).open("a") as file:
        file.write("half a")
    view = LogView(run, rank=0, tail=tail)
    assert "half a" not in list(view.lines(ended=False))
    assert list(view.lines(ended=False)) == []
    with run.log(0).open("a") as file:
        file.write(" line\nnever ended")
    assert list(view.lines(ended=False)) == ["half a line"]
    assert list(view.lines(ended=True)) == ["never ended"]


def test_a_worker_that_has_printed_nothing_yet_is_known_and_followed_from_its_first_line(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.add_event(events.World(attempt=1, workers=2, restart=0))
    assert ranks(run) == [0, 1]
    view = LogView(run, rank=1, tail=1)
    assert list(view.lines(ended=False)) == []
    run.log(1).parent.mkdir()
    run.log(1).write_text("one\ntwo\n")
    assert list(view.lines(ended=False)) == ["one", "two"]
