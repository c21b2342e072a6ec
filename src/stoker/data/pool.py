"""Work shared out over processes. When this one ends, however it ends, they do."""

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
# Not multiprocessing's own way to start: that imports the main module again, and with it all that a script does.
SERVE = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends us
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
    """Whatever `work` yields for each task, as it comes. The first error ends all."""
    workers: dict[Connection, subprocess.Popen[bytes]] = {}
    try:
        for _ in range(min(processes, len(tasks))):
            ours, theirs = multiprocessing.Pipe()
            with theirs:
                argv = [sys.executable, "-P", "-c", SERVE, str(theirs.fileno())]
                workers[ours] = subprocess.Popen(
                    argv, env=os.environ | environment, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
                )
            ours.send(sys.path)
            ours.send(work)
        yield from _share_out(workers, tasks)
    finally:
        for connection, process in workers.items():
            connection.close()
            process.kill()
            process.wait()


def _share_out(workers: dict[Connection, subprocess.Popen[bytes]], tasks: Sequence[Any]) -> Iterator[Any]:
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
        "a process of prepare was killed, most likely for lack of memory",
        remedy="Run it again with fewer --workers: it goes on where it stopped",
    )


def serve(descriptor: int) -> None:
    """The other end: what a process does that `run` has started."""
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
