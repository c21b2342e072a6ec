"""Work shared out over processes. When this one ends, however it ends, they do."""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, TypeVar, cast

from stoker.spec.errors import StokerError, UserError

Task = TypeVar("Task")
Message = TypeVar("Message")


def run(
    work: Callable[[Task], Iterator[Message]],
    tasks: Sequence[Task],
    *,
    processes: int,
    environment: Mapping[str, str],
) -> Generator[Message]:
    """Whatever `work` yields for each task, as it comes. The first error ends all."""
    context = multiprocessing.get_context("spawn")  # a fork would copy locks that the tokenizer's threads hold
    workers: dict[Connection, SpawnProcess] = {}
    try:
        for _ in range(min(processes, len(tasks))):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, work, dict(environment)), daemon=True)
            process.start()
            theirs.close()
            workers[ours] = process
        yield from _share_out(workers, tasks)
    finally:
        for connection, process in workers.items():
            connection.close()
            process.kill()
            process.join()


def _share_out(workers: dict[Connection, SpawnProcess], tasks: Sequence[Any]) -> Iterator[Any]:
    waiting, busy = list(reversed(tasks)), 0
    for connection in workers:
        connection.send(waiting.pop())
        busy += 1
    while busy:
        for ready in wait(list(workers)):
            connection = cast(Connection, ready)
            try:
                kind, content = connection.recv()
            except (EOFError, ConnectionResetError):
                raise _died(workers[connection]) from None
            if kind == "message":
                yield content
            elif kind == "mistake":
                raise UserError(content[0], remedy=content[1])
            elif kind == "bug":
                raise RuntimeError(f"in a process of prepare:\n{content}")
            elif waiting:
                connection.send(waiting.pop())
            else:
                busy -= 1


def _died(process: SpawnProcess) -> Exception:
    process.join()
    if process.exitcode != -signal.SIGKILL:
        return RuntimeError(f"a process of prepare ended with exit code {process.exitcode}")
    return UserError(
        "a process of prepare was killed, most likely for lack of memory",
        remedy="Run it again with fewer --workers: it goes on where it stopped",
    )


def _serve(connection: Connection, work: Callable[[Any], Iterator[Any]], environment: dict[str, str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends us
    os.environ.update(environment)
    while True:
        try:
            task = connection.recv()
            for message in work(task):
                connection.send(("message", message))
            connection.send(("done", None))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return  # the parent is gone
        except StokerError as e:
            connection.send(("mistake", (e.problem, e.remedy)))
        except Exception:
            connection.send(("bug", traceback.format_exc()))
