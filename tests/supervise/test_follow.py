"""A node that follows: in one process with its leader, over a real socket, with real workers."""

import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict

import pytest

from stoker.rundir import RunDir
from stoker.spec.on import Nodes
from stoker.supervise.follow import Parting, follow
from stoker.supervise.logfile import LogFile
from stoker.supervise.members import Members, Patience, find_leader
from stoker.supervise.signals import Signals
from stoker.supervise.workers import Job, Launch
from tests.processes import is_alive
from tests.supervise.a_node import HOME, a_node
from tests.waiting import until

# The second prints something and dies.
WORKER = """
import os, sys, time
from pathlib import Path
if os.environ["RANK"] == "3": print("boom", flush=True); sys.exit(1)
Path(os.environ["STOKER_RUN_DIR"], "pid").write_text(str(os.getpid()))
time.sleep(600)
"""


@pytest.fixture
def members(run: RunDir) -> Iterator[Members]:
    members = Members(run, a_node(0), 0, nodes=Nodes("9"), patience=Patience(), note=lambda *_, **__: None)
    yield members
    members.close(None)


class Following(threading.Thread):
    def __init__(self, run: RunDir, node: int) -> None:
        super().__init__(daemon=True)
        self._run, self._node = run, node
        self.parting: Parting | None = None
        self.start()

    def run(self) -> None:
        leader = find_leader(self._run)
        assert leader is not None
        job = Job(run=self._run, command=[sys.executable, "-c", WORKER], workers=2)
        self.parting = follow(job, a_node(self._node), leader, signals=Signals(), patience=Patience())


def test_who_is_taken_in_says_so_and_ends_as_the_run_does(
    run: RunDir, members: Members, capsys: pytest.CaptureFixture[str]
) -> None:
    following = Following(run, 1)
    until(lambda: members.turn() or members.here())
    members.close(3)
    following.join(timeout=30)
    assert following.parting == Parting(met=True, code=3)
    assert capsys.readouterr().err == f"stoker: node 1 (pod pod-1) follows node 0 at {HOME}\n"


def test_who_has_the_index_of_the_leader_has_met_nobody(
    run: RunDir, members: Members, capsys: pytest.CaptureFixture[str]
) -> None:
    following = Following(run, 0)
    until(lambda: members.turn() or not following.is_alive())
    assert following.parting == Parting(met=False, code=None)
    assert capsys.readouterr().err == ""


def test_no_worker_outlives_the_leader_when_the_storage_hangs(
    run: RunDir, members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    healed = threading.Event()
    write = LogFile.write
    monkeypatch.setattr(LogFile, "write", lambda self, lines: (healed.wait(), write(self, lines))[1])
    following = Following(run, 1)
    until(lambda: members.turn() or members.here())
    launch = Launch(attempt=1, restart=0, world=4, first=2, group=1, groups=2, address=HOME, port=1, served=False)
    (peer,) = members.here()
    members.tell(peer, {"kind": "start", "launch": asdict(launch)})
    until((run.path / "pid").exists)
    until(lambda: (run.path / "pid").read_text())
    worker = int((run.path / "pid").read_text())
    time.sleep(1)  # the other has ended, and what it printed cannot be written
    assert is_alive(worker)
    members.close(None)
    until(lambda: not is_alive(worker), seconds=60)
    assert following.is_alive(), "the storage hangs still"
    healed.set()
    following.join(timeout=30)
    assert following.parting == Parting(met=True, code=None)
