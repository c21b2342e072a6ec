"""A follower and its leader in one process, over a real socket, with real workers."""

import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from stoker.rundir import RunDir
from stoker.spec.on import Nodes
from stoker.supervise.nodes.follower import FollowResult, follow
from stoker.supervise.nodes.membership import Membership, Timeouts, find_leader
from stoker.supervise.nodes.messages import StartWorkers
from stoker.supervise.output.log_file import LogFile
from stoker.supervise.signals import Signals
from stoker.supervise.workers.environment import RankAssignment
from stoker.supervise.workers.launcher import WorkerLauncher
from tests.processes import is_alive
from tests.supervise.nodes.sample_node import ADDRESS, sample_node
from tests.waiting import until

# Rank 3 prints something and dies.
WORKER = """
import os, sys, time
from pathlib import Path
if os.environ["RANK"] == "3": print("boom", flush=True); sys.exit(1)
Path(os.environ["STOKER_RUN_DIR"], "pid").write_text(str(os.getpid()))
time.sleep(600)
"""


@pytest.fixture
def membership(run: RunDir) -> Iterator[Membership]:
    membership = Membership(run, sample_node(0), 0, nodes=Nodes("9"), timeouts=Timeouts(), record=lambda *_, **__: None)
    yield membership
    membership.close(None)


class FollowerThread(threading.Thread):
    def __init__(self, run: RunDir, index: int) -> None:
        super().__init__(daemon=True)
        self._run, self._index = run, index
        self.result: FollowResult | None = None
        self.start()

    def run(self) -> None:
        leader = find_leader(self._run)
        assert leader is not None
        launcher = WorkerLauncher(run=self._run, command=[sys.executable, "-c", WORKER], workers=2)
        self.result = follow(launcher, sample_node(self._index), leader, signals=Signals(), timeouts=Timeouts())


def test_a_node_that_is_accepted_says_so_and_exits_with_the_code_of_the_run(
    run: RunDir, membership: Membership, capsys: pytest.CaptureFixture[str]
) -> None:
    follower = FollowerThread(run, 1)
    until(lambda: membership.poll() or membership.followers())
    membership.close(3)
    follower.join(timeout=30)
    assert follower.result == FollowResult(accepted=True, code=3)
    assert capsys.readouterr().err == f"stoker: node 1 (pod pod-1) follows node 0 at {ADDRESS}\n"


def test_a_node_with_the_index_of_the_leader_is_not_accepted(
    run: RunDir, membership: Membership, capsys: pytest.CaptureFixture[str]
) -> None:
    follower = FollowerThread(run, 0)
    until(lambda: membership.poll() or not follower.is_alive())
    assert follower.result == FollowResult(accepted=False, code=None)
    assert capsys.readouterr().err == ""


def test_a_leader_record_with_an_impossible_address_is_ignored(run: RunDir, membership: Membership) -> None:  # noqa: ARG001
    leader = find_leader(run)
    assert leader is not None
    launcher = WorkerLauncher(run=run, command=[], workers=2)
    impossible = replace(leader, address="a..b")
    result = follow(launcher, sample_node(1), impossible, signals=Signals(), timeouts=Timeouts())
    assert result == FollowResult()


def test_no_worker_outlives_the_leader_when_the_storage_hangs(
    run: RunDir, membership: Membership, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage_works = threading.Event()
    write = LogFile.write
    monkeypatch.setattr(LogFile, "write", lambda self, lines: (storage_works.wait(), write(self, lines))[1])
    follower = FollowerThread(run, 1)
    until(lambda: membership.poll() or membership.followers())
    assignment = RankAssignment(
        attempt=1,
        restart=0,
        world=4,
        first_rank=2,
        node_rank=1,
        nodes=2,
        master_address=ADDRESS,
        master_port=1,
        store_served=False,
    )
    (peer,) = membership.followers()
    membership.send(peer, StartWorkers(assignment=assignment))
    until((run.path / "pid").exists)
    until(lambda: (run.path / "pid").read_text())
    worker = int((run.path / "pid").read_text())
    time.sleep(1)  # the other worker has ended, and its output cannot be written
    assert is_alive(worker)
    membership.close(None)
    until(lambda: not is_alive(worker), seconds=60)
    assert follower.is_alive(), "the storage still hangs"
    storage_works.set()
    follower.join(timeout=30)
    assert follower.result == FollowResult(accepted=True, code=None)
