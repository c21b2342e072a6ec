"""Of workers that end together, the one that failed by itself is the root cause, whichever ended first."""

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from stoker.rundir import RunDir
from stoker.spec import contract
from stoker.spec.run import ScriptSpec
from stoker.supervise.workers.environment import single_node
from stoker.supervise.workers.exit import WorkerExit, worker_exit
from stoker.supervise.workers.group import NODE_LOST, WorkerGroup
from stoker.supervise.workers.launcher import WorkerLauncher
from tests.waiting import until

PEER = "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.9]:53"
ABORT = "terminate called without an active exception"
NATIVE = "\n".join(f"frame #{n}: c10d::ProcessGroupGloo::runLoop(int) + 0x{n:x}" for n in range(60))
KEY_ERROR = 'Traceback (most recent call last):\n  File "train.py", line 3\nKeyError: 42'
PRINTS = {
    "ValueError: no such thing": "sys.exit(1)",
    PEER: "sys.exit(1)",
    "killed": "os.kill(os.getpid(), 9)",
}


class EndedWorkers(WorkerGroup):
    """Workers that have ended, in this order."""

    def __init__(self, *ends: tuple[int, str]) -> None:
        self.world = len(ends)
        self._ends = ends

    def poll(self) -> dict[int, int]:
        return {rank: code for rank, (code, _) in enumerate(self._ends)}

    def exit_of(self, rank: int) -> WorkerExit:
        code, output = self._ends[rank]
        if code == NODE_LOST:
            return WorkerExit(rank=rank, code=None, signal=None, line="", output="", lost_node="node 1")
        return worker_exit(rank, code, output=output)

    def terminate(self) -> None: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("cause", "victims"),
    [
        ((1, KEY_ERROR), [(1, PEER), (1, f"{PEER}\n{NATIVE}"), (-6, f"{PEER}\n{ABORT}"), (-6, ABORT)]),
        ((-6, f"{KEY_ERROR}\n{ABORT}\n{NATIVE}"), [(1, PEER), (-6, f"{PEER}\n{ABORT}\n{NATIVE}"), (-11, PEER)]),
        ((-9, "step 5"), [(1, PEER), (-6, f"{PEER}\n{ABORT}"), (1, "ValueError: the others are gone")]),
        ((-11, "step 5"), [(1, PEER), (-6, f"{PEER}\n{ABORT}")]),
        ((NODE_LOST, ""), [(1, PEER), (-9, "step 5"), (1, KEY_ERROR)]),
        ((1, "bad settings"), [(1, PEER), (-6, f"{PEER}\n{ABORT}")]),
        ((-6, "terminate called after throwing an instance of 'std::bad_alloc'"), [(1, PEER)]),
    ],
    ids=lambda value: repr(value[:2])[:40],
)
def test_the_root_cause_is_the_same_in_every_order(cause: tuple[int, str], victims: list[tuple[int, str]]) -> None:
    for order in itertools.permutations([cause, *victims]):
        root_cause = EndedWorkers(*order).root_cause()
        assert root_cause is not None
        assert root_cause.rank == order.index(cause)


def test_the_error_of_the_worker_is_quoted_and_not_how_it_was_aborted() -> None:
    exit = worker_exit(1, -6, output=f"step 5\n{KEY_ERROR}\n{ABORT}\n{NATIVE}\n")
    assert str(exit) == "worker 1 was killed by SIGABRT: KeyError: 42"


def test_ordinary_output_is_quoted_as_the_last_line_and_not_as_the_reason() -> None:
    assert (
        str(worker_exit(0, -9, output="step 5 loss 3.2\n"))
        == "worker 0 was killed by SIGKILL; its last line: step 5 loss 3.2"
    )


@pytest.mark.parametrize("code", [contract.EXIT_USER, contract.EXIT_FAILED])
def test_the_exit_code_of_a_victim_does_not_prevent_a_restart(code: int) -> None:
    assert EndedWorkers((code, PEER), (1, KEY_ERROR)).fatal_exit() is None
    assert EndedWorkers((code, PEER), (1, PEER)).fatal_exit() is not None
    assert EndedWorkers((code, "rank 0: the loss is nan"), (1, PEER)).fatal_exit() is not None


Started = Callable[..., WorkerGroup]


@pytest.fixture
def started(tmp_path: Path) -> Started:
    def start(parts: list[str]) -> WorkerGroup:
        script = tmp_path / "train.py"
        lines = [f"if rank == {rank}: {part}" for rank, part in enumerate(parts)]
        script.write_text(dedent("import os, sys, time\nrank = int(os.environ['RANK'])\n") + "\n".join(lines))
        run = RunDir(tmp_path / "tale")
        spec = ScriptSpec(name="tale", script=str(script))
        run.create(spec, None)
        launcher = WorkerLauncher(run=run, command=[sys.executable, str(script)], workers=len(parts))
        assignment = single_node(attempt=1, restart=0, workers=len(parts), port=1, store_served=False)
        return launcher.start(spec, assignment, note=print)

    return start


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (["RuntimeError", "ValueError"], 1),
        (["ValueError", "RuntimeError"], 0),
        (["ValueError", "killed"], 1),
        (["RuntimeError", "killed", "ValueError"], 1),
    ],
)
def test_of_workers_that_end_together_the_one_least_likely_to_be_a_victim_is_the_root_cause(
    started: Started, order: list[str], expected: int
) -> None:
    lines = [next(line for line in PRINTS if line.startswith(word)) for word in order]
    workers = started([f"print({line!r}, flush=True); {PRINTS[line]}" for line in lines])
    assert workers.wait(60)
    root_cause = workers.root_cause()
    workers.end()
    assert root_cause is not None
    assert root_cause.rank == expected


def test_a_worker_that_takes_long_to_end_is_waited_for_while_only_its_victims_have_ended(
    started: Started, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    slow = (
        f"print('KeyError: 42', flush=True); [time.sleep(0.01) for _ in iter(lambda: os.path.exists({str(gone)!r}), 1)]"
    )
    workers = started([f"print({PEER!r}, flush=True); sys.exit(1)", f"{slow}; sys.exit(1)", "time.sleep(600)"])
    until(lambda: 0 in workers.poll())
    looks = itertools.count()

    def stopping() -> bool:
        """By the fourth call the victim has been seen."""
        if next(looks) == 3:
            gone.touch()
        return False

    workers.wait_for_root_cause(stopping)
    root_cause = workers.root_cause()
    assert workers.alive, "a worker that hangs in a collective is not waited for"
    workers.end()
    assert root_cause is not None
    assert (root_cause.rank, root_cause.line) == (1, "KeyError: 42")
