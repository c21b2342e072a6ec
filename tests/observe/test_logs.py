from pathlib import Path

import pytest

from stoker.observe.logs import LogView, last_lines, ranks
from stoker.rundir import RunDir
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


def test_one_rank_is_shown_as_it_is_and_all_with_their_rank(run: RunDir) -> None:
    assert ranks(run) == [0, 1, 10]
    assert list(LogView(run, rank=1, tail=2).lines()) == ["line 3 of 1", "line 4 of 1"]
    lines = list(LogView(run, rank=None, tail=1).lines())
    assert lines == ["[0] line 4 of 0", "[1] line 4 of 1", "[10] line 4 of 10"]


@pytest.mark.parametrize("tail", [2, None])
def test_following_shows_what_is_added_once(run: RunDir, tail: int | None) -> None:
    view = LogView(run, rank=0, tail=tail)
    assert len(list(view.lines())) == (tail or 5)
    assert list(view.lines()) == []
    with run.log(0).open("a") as file:
        file.write("more\n")
    assert list(view.lines()) == ["more"]


def test_a_rank_that_is_not_there_is_refused_with_those_that_are(run: RunDir) -> None:
    with pytest.raises(UserError, match=r"no log of rank 7\. It has those of 0, 1, 10"):
        LogView(run, rank=7, tail=None)
