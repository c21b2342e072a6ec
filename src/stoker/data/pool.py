"""Distributes work over processes, which end with this process, even if it is killed."""

import multiprocessing
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar, cast

from stoker.spec.errors import StokerError, UserError

Task = TypeVar("Task")
Message = TypeVar("Message")
# Not started by multiprocessing, which would import the main module again, and run the user's script with it.
SERVE = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends this process
from stoker.data.pool import serve
serve(int(sys.argv[1]))
"""


def run(
    work: Callable[[Task], Iterator[Message]],
    tasks: Sequence[Task],
    *,
    processes: int,
    environment: Mapping[str, str],
) -> Generator[Message]:
    """Yields what `work` yields for each task, as it comes. The first error ends all processes."""
    workers: dict[Connection, subprocess.Popen[bytes]] = {}
    try:
        for _ in range(min(processes, len(tasks))):
            parent_end, child_end = multiprocessing.Pipe()
            with child_end:
                argv = [sys.executable, "-P", "-c", SERVE, str(child_end.fileno())]
                workers[parent_end] = subprocess.Popen(
                    argv, env=os.environ | environment, stdin=subprocess.DEVNULL, pass_fds=[child_end.fileno()]
                )
            parent_end.send(sys.path)
            parent_end.send(work)
        yield from _distribute(workers, tasks)
    finally:
        for connection, process in workers.items():
            connection.close()
            process.kill()
            process.wait()


def _distribute(workers: dict[Connection, subprocess.Popen[bytes]], tasks: Sequence[Any]) -> Iterator[Any]:
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


def _died(process: subprocess.Popen[bytes]) -> Exception:
    if process.wait() != -signal.SIGKILL:
        return RuntimeError(f"a process of prepare ended with exit code {process.returncode}")
    return UserError(
        "a process of prepare was killed, most likely because memory ran out",
        remedy="Run it again with fewer --workers: it resumes where it stopped",
    )


def serve(descriptor: int) -> None:
    """The main loop of a process that `run` has started."""
    connection = Connection(descriptor)
    sys.path[:] = connection.recv()
    work = connection.recv()
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
