import importlib
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from stoker.data import pool
from stoker.spec.errors import UserError


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Generator]:
    """pool.run, with work named as in pool_work.py."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    work = importlib.import_module("pool_work")

    def start(name: str, tasks: list[int], **environment: str) -> Generator:
        return pool.run(getattr(work, name), tasks, processes=2, environment=environment)

    return start


def test_all_work_is_done_and_the_messages_of_a_task_keep_their_order(run) -> None:
    messages = list(run("count_up", [5, 0, 3, 7]))
    assert sorted(messages) == sorted((task, i) for task in (5, 3, 7) for i in range(task))
    for task in (5, 3, 7):
        assert [i for t, i in messages if t == task] == list(range(task))


def test_processes_get_their_environment(run) -> None:
    assert list(run("report_environment", [1], STOKER_TEST="yes")) == ["yes"]


def test_no_work_is_no_trouble(run) -> None:
    assert list(run("count_up", [])) == []


def test_a_users_mistake_comes_through_as_it_is(run) -> None:
    with pytest.raises(UserError, match="it is broken") as error:
        list(run("fail", [1, 2]))
    assert error.value.remedy == "Fix it"


def test_a_bug_comes_with_its_traceback(run) -> None:
    with pytest.raises(RuntimeError, match="KeyError: 'a bug'"):
        list(run("crash", [1]))


def test_a_killed_process_is_noticed(run) -> None:
    with pytest.raises(UserError, match="was killed") as error:
        list(run("die", [1]))
    assert "fewer --workers" in error.value.remedy


def test_no_process_is_left_when_the_caller_stops_early(run) -> None:
    messages = run("for_ever", [1, 2])
    pids = {next(messages) for _ in range(200)}
    messages.close()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
