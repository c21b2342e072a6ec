"""Work for the processes of test_pool.py, which import it by name."""

import os
import signal
from collections.abc import Iterator

from stoker.spec.errors import UserError


def count_up(task: int) -> Iterator[tuple[int, int]]:
    for i in range(task):
        yield task, i


def report_environment(_: int) -> Iterator[str]:
    yield os.environ["STOKER_TEST"]


def fail(task: int) -> Iterator[int]:
    yield task
    if task == 2:
        raise UserError("it is broken", remedy="Fix it")


def crash(task: int) -> Iterator[int]:
    yield task
    raise KeyError("a bug")


def die(_: int) -> Iterator[int]:
    yield os.getpid()
    os.kill(os.getpid(), signal.SIGKILL)


def for_ever(_: int) -> Iterator[int]:
    while True:
        yield os.getpid()
