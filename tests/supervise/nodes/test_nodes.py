"""One run over several nodes: real supervisor processes over small worker scripts that need no torch."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from stoker.rundir import DataRef, Exit, RunDir, write_json
from stoker.spec.data import Data
from stoker.spec.on import LocalOn, Nodes
from stoker.spec.run import RunSpec, ScriptSpec, Until
from stoker.supervise.scale import request_nodes
from tests.processes import is_alive
from tests.waiting import PATIENCE_S, until

Make = Callable[..., Any]

# Ends as the trainer does: when one worker is asked to, all of them save and leave.
WORKER = """
import json, os, signal, sys, time
from pathlib import Path
run, rank, attempt = Path(os.environ["STOKER_RUN_DIR"]), int(os.environ["RANK"]), int(os.environ["STOKER_ATTEMPT"])
asked = run / f"asked-{attempt}"
(run / "ledger" / f"attempt-{attempt:04d}-rank-{rank:04d}.jsonl").touch()
(run / f"env-{attempt}-{rank}.json").write_text(json.dumps(dict(os.environ) | {"pid": os.getpid()}))

def ready():
    signal.signal(signal.SIGTERM, lambda *_: asked.touch())
    (run / f"ready-{attempt}-{rank}").touch()

def leave(state, code, reason=""):
    if rank == 0:
        text = json.dumps({"state": state, "code": code, "step": 7, "reason": reason})
        (run / ".exit").write_text(text)
        os.replace(run / ".exit", run / "exit.json")
    sys.exit(code)

print("worker", rank, "of", os.environ["WORLD_SIZE"], flush=True)
"""
WAIT = """
ready()
while not (run / "finish").exists():
    if asked.exists(): leave("paused", 75, "stopped as asked")
    time.sleep(0.01)
leave("done", 0, "all steps")
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "tale")
    spec = RunSpec(name="tale", data=Data(path="x"), until=Until(steps=10), on=LocalOn(max_restarts=1))
    run.create(spec, DataRef(shards="/nowhere", key="k"))
    return run


@pytest.fixture
def make_nodes(tmp_path: Path, run: RunDir, nodes: Make) -> Make:
    """make_nodes(script, nodes="2", workers=2): the run's nodes, not started."""

    def make(script: str = WAIT, **how: Any) -> Any:
        (tmp_path / "worker.py").write_text(WORKER + dedent(script))
        return nodes(run, sys.executable, str(tmp_path / "worker.py"), **how)

    return make


def ready(cluster: Any, *nodes: int, after: int = 0) -> list[dict[str, Any]]:
    """The workers' environments, once an attempt of exactly these nodes runs that is not one of the first `after`."""

    def environment_files() -> list[Path]:
        world = (cluster.events("world")[after:] or [{"nodes": []}])[-1]
        if [node["node"] for node in world["nodes"]] != list(nodes):
            return []
        workers = [f"{world['attempt']}-{rank}" for rank in range(world["workers"])]
        all_ready = all((cluster.run.path / f"ready-{worker}").exists() for worker in workers)
        return [cluster.run.path / f"env-{worker}.json" for worker in workers if all_ready]

    until(environment_files, tell=cluster.story)
    return [json.loads(file.read_text()) for file in environment_files()]


def started(run: RunDir, attempt: int) -> None:
    until((run.path / f"ready-{attempt}-0").exists)


def finish(run: RunDir, *supervisors: "subprocess.Popen[bytes]") -> None:
    (run.path / "finish").touch()
    assert [process.wait(timeout=PATIENCE_S) for process in supervisors] == [0] * len(supervisors)
    assert ended(run).state == "done"


def ended(run: RunDir) -> Exit:
    exit = run.exit()
    assert exit is not None
    return exit


def leader_of(run: RunDir) -> dict[str, Any]:
    file = run.path / ".members" / "leader.json"
    until(file.exists)
    leader: dict[str, Any] = json.loads(file.read_text())
    return leader


def test_two_nodes_are_one_world_with_the_environment_of_torchrun(run: RunDir, make_nodes: Make) -> None:
    cluster = make_nodes()
    first, second = cluster.begin(2)
    seen = ready(cluster, 0, 1)
    finish(run, first, second)
    assert [env["RANK"] for env in seen] == [env["ROLE_RANK"] for env in seen] == ["0", "1", "2", "3"]
    assert [env["LOCAL_RANK"] for env in seen] == ["0", "1", "0", "1"]
    assert [env["GROUP_RANK"] for env in seen] == ["0", "0", "1", "1"]
    for env in seen:
        assert (env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"], env["GROUP_WORLD_SIZE"]) == ("4", "2", "2")
        assert env["MASTER_ADDR"] == "127.0.0.2"
    assert len({env["MASTER_PORT"] for env in seen}) == 1
    (world,) = cluster.events("world")
    ranks = [(node["node"], node["pod"], node["first"], node["workers"]) for node in world["nodes"]]
    assert ranks == [(0, "pod-0", 0, 2), (1, "pod-1", 2, 2)]
    assert [run.log(rank).read_text()[25:] for rank in range(4)] == [f"worker {rank} of 4\n" for rank in range(4)]
    printed = cluster.log.read_text().splitlines()
    assert sorted(line for line in printed if line[0] == "[") == [f"[{rank}] worker {rank} of 4" for rank in range(4)]
    assert "stoker: node 0 (pod pod-0) leads" in printed
    assert "stoker: node 1 (pod pod-1) follows node 0 at 127.0.0.2" in printed
    assert run.holder() is None


def test_a_worker_killed_on_another_node_is_the_root_cause_and_all_restart(run: RunDir, make_nodes: Make) -> None:
    victims = """
    if attempt == 1:
        ready()
        while rank != 3 and not (run / "gone").exists(): time.sleep(0.01)
        if rank != 3: print("Connection closed by peer"); sys.exit(1)
    """
    cluster = make_nodes(dedent(victims) + WAIT)
    supervisors = cluster.begin(2)
    pid = ready(cluster, 0, 1)[3]["pid"]
    os.kill(pid, signal.SIGKILL)
    (run.path / "gone").touch()
    ready(cluster, 0, 1, after=1)
    finish(run, *supervisors)
    (failed,) = cluster.events("failed")
    assert (failed["rank"], failed["signal"], failed["again"]) == (3, "SIGKILL", True)
    assert cluster.worlds() == [[0, 1], [0, 1]]


def test_a_repeated_crash_ends_the_run_on_every_node(run: RunDir, make_nodes: Make) -> None:
    cluster = make_nodes('if rank == 2: print("ValueError: no such thing"); sys.exit(1)\ntime.sleep(60)')
    assert [process.wait(timeout=PATIENCE_S) for process in cluster.begin(2)] == [3, 3]
    assert (ended(run).state, ended(run).rank) == ("failed", 2)
    assert "worker 2 ended with code 1: ValueError: no such thing, 2 times in a row" in ended(run).reason


@pytest.mark.parametrize("code", [2, 3])
def test_an_exit_code_for_do_not_restart_ends_the_run_on_every_node_with_that_code(
    run: RunDir, make_nodes: Make, code: int
) -> None:
    cluster = make_nodes(f'if rank == 3: print("loss is NaN"); sys.exit({code})\ntime.sleep(60)')
    supervisors = cluster.begin(2)
    assert [process.wait(timeout=PATIENCE_S) for process in supervisors] == [code, code]
    assert (ended(run).state, ended(run).code, ended(run).rank) == ("failed", code, 3)
    assert "loss is NaN" in ended(run).reason


def test_workers_die_with_a_killed_follower_and_the_run_resumes_when_it_is_back(run: RunDir, make_nodes: Make) -> None:
    cluster = make_nodes()
    first, second = cluster.begin(2)
    workers = [env["pid"] for env in ready(cluster, 0, 1)]
    second.kill()
    until(lambda: not any(map(is_alive, workers)))
    until(lambda: cluster.events("waiting for nodes"))
    waiting = cluster.events("waiting for nodes")[0]
    assert (waiting["joined"], waiting["missing"]) == ([0], [1])
    again = cluster.start(1)
    ready(cluster, 0, 1, after=1)
    finish(run, first, again)
    (lost,) = cluster.events("lost")
    assert (lost["node"], lost["pod"]) == (1, "pod-1")
    assert not cluster.events("failed")


def test_when_the_leader_is_killed_another_leads(run: RunDir, make_nodes: Make) -> None:
    cluster = make_nodes()
    first, second = cluster.begin(2)
    workers = [env["pid"] for env in ready(cluster, 0, 1)]
    assert leader_of(run)["node"] == 0
    first.kill()
    until(lambda: not any(map(is_alive, workers)))
    until(lambda: leader_of(run)["node"] == 1)
    again = cluster.start(0)
    assert [env["MASTER_ADDR"] for env in ready(cluster, 1, 0)] == ["127.0.0.3"] * 4
    finish(run, again, second)
    assert cluster.worlds() == [[0, 1], [1, 0]]


def test_when_a_node_is_asked_to_leave_all_save_and_the_others_continue_without_it(
    run: RunDir, make_nodes: Make
) -> None:
    cluster = make_nodes(nodes="3", workers=1)
    first, second, third = cluster.begin(3)
    ready(cluster, 0, 1, 2)
    request_nodes(run, Nodes("2..3"))
    until(lambda: cluster.events("scaled"))
    second.terminate()
    assert second.wait(timeout=PATIENCE_S) == 203
    ready(cluster, 0, 2)
    back = cluster.start(1)
    ready(cluster, 0, 1, 2)
    finish(run, first, back, third)
    assert cluster.worlds() == [[0, 1, 2], [0, 2], [0, 1, 2]]
    reasons = [event["reason"] for event in cluster.events("regrouping")]
    assert reasons == ["node 1 (pod pod-1) leaves", "node 1 (pod pod-1) has joined"]
    assert [event["node"] for event in cluster.events("left")] == [1]
    assert not cluster.events("lost")
    assert not cluster.events("failed")


def test_a_leaving_node_is_recorded_even_when_all_have_saved_before_the_leader_polls(
    run: RunDir, make_nodes: Make
) -> None:
    cluster = make_nodes(nodes="1..2", workers=1, silence=PATIENCE_S)
    first, second = cluster.begin(2)
    ready(cluster, 0, 1)
    os.kill(first.pid, signal.SIGSTOP)  # a busy machine
    second.terminate()
    assert second.wait(timeout=PATIENCE_S) == 203
    os.kill(first.pid, signal.SIGCONT)
    ready(cluster, 0)
    finish(run, first)
    assert [event["reason"] for event in cluster.events("regrouping")][-1] == "node 1 (pod pod-1) leaves"


def test_a_leader_asked_to_leave_hands_over(run: RunDir, make_nodes: Make) -> None:
    cluster = make_nodes(nodes="1..2", workers=1)
    first, second = cluster.begin(2)
    ready(cluster, 0, 1)
    first.terminate()
    assert first.wait(timeout=PATIENCE_S) == 203
    ready(cluster, 1)
    finish(run, second)


def test_when_all_nodes_are_asked_to_leave_the_run_is_paused(run: RunDir, make_nodes: Make) -> None:
    cluster = make_nodes()
    supervisors = cluster.begin(2)
    ready(cluster, 0, 1)
    for process in supervisors:
        process.terminate()
    assert [process.wait(timeout=PATIENCE_S) for process in supervisors] == [203, 203]
    assert (ended(run).state, ended(run).reason) == ("paused", "stopped as asked")
    assert run.holder() is None
    supervisors = cluster.begin(2)
    ready(cluster, 0, 1, after=1)
    finish(run, *supervisors)


def test_a_frozen_node_is_lost_and_may_join_again(run: RunDir, make_nodes: Make) -> None:
    cluster = make_nodes(nodes="1..2", workers=1, silence=4)
    first, second = cluster.begin(2)
    ready(cluster, 0, 1)
    os.kill(second.pid, signal.SIGSTOP)
    ready(cluster, 0)
    assert [event["node"] for event in cluster.events("lost")] == [1]
    os.kill(second.pid, signal.SIGCONT)
    ready(cluster, 0, 1)
    finish(run, first, second)


def test_a_new_node_replaces_the_node_with_the_same_index(run: RunDir, make_nodes: Make) -> None:
    cluster = make_nodes(workers=1)
    first, old = cluster.begin(2)
    ready(cluster, 0, 1)
    os.kill(old.pid, signal.SIGSTOP)  # a pod on a machine that is unreachable
    new = cluster.start(1)
    ready(cluster, 0, 1, after=1)
    old.kill()
    finish(run, first, new)


def test_a_run_that_reaches_its_own_limit_ends_all_nodes_with_code_0(run: RunDir, make_nodes: Make) -> None:
    cluster = make_nodes('leave("paused", 0, "until.time is reached")')
    supervisors = cluster.begin(2)
    assert [process.wait(timeout=PATIENCE_S) for process in supervisors] == [0, 0]
    assert ended(run).state == "paused"


def test_a_node_that_starts_after_the_end_exits_with_the_code_of_the_run(run: RunDir, make_nodes: Make) -> None:
    cluster = make_nodes()
    run.write_exit(Exit(state="failed", code=3, step=7, reason="the gradients are not finite"))
    assert cluster.start(1).wait(timeout=PATIENCE_S) == 3
    assert cluster.worlds() == []


def test_a_single_node_needs_no_peers_and_waits_for_the_node_that_it_replaces(run: RunDir, make_nodes: Make) -> None:
    cluster = make_nodes(nodes="1", workers=1)
    old = cluster.start(0)
    started(run, 1)
    new = cluster.start(0)
    old.terminate()
    assert old.wait(timeout=PATIENCE_S) == 203
    started(run, 2)
    finish(run, new)
    assert not (run.path / ".members" / "leader.json").exists()


@pytest.mark.parametrize("ended", [False, True])
def test_a_single_node_that_lost_the_lock_leaves_the_run_to_its_replacement(
    run: RunDir, make_nodes: Make, ended: bool
) -> None:
    cluster = make_nodes(nodes="1", workers=1)
    old = cluster.start(0)
    started(run, 1)
    worker = json.loads((run.path / "env-1-0.json").read_text())["pid"]
    if ended:
        (run.path / ".members" / "leader.json").unlink()
    else:
        write_json(run.path / ".members" / "leader.json", leader_of(run) | {"id": "another"})
    assert old.wait(timeout=PATIENCE_S) == 203
    until(lambda: not is_alive(worker))
    assert run.exit() is None
    assert ended or leader_of(run)["id"] == "another"


def test_a_script_is_asked_to_save_on_all_nodes_and_has_the_loss_curve_of_rank_0(tmp_path: Path, nodes: Make) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        dedent("""
        import os, signal, sys, time
        from pathlib import Path
        run, rank = Path(os.environ["STOKER_RUN_DIR"]), int(os.environ["RANK"])
        signal.signal(signal.SIGTERM, lambda *_: ((run / f"saved-{rank}").touch(), sys.exit(1)))
        print(f"step 5 loss {rank + 1}", flush=True)
        if (run / "saved-0").exists(): sys.exit(0)
        print("the key is", os.environ["KEY"], flush=True)
        (run / f"ready-1-{rank}").touch()
        time.sleep(60)
        """)
    )
    run = RunDir(tmp_path / "tale")
    run.create(ScriptSpec(name="tale", script=str(script), secrets={"KEY": "env:KEY"}), None)
    cluster = nodes(run, sys.executable, str(script), workers=1)
    key = "open-sesame"
    first, second = cluster.begin(2, KEY=key)
    until(lambda: all((run.path / f"ready-1-{rank}").exists() for rank in (0, 1)))
    second.terminate()
    assert second.wait(timeout=PATIENCE_S) == 203
    until(lambda: all((run.path / f"saved-{rank}").exists() for rank in (0, 1)))
    again = cluster.start(1, KEY=key)
    assert [process.wait(timeout=PATIENCE_S) for process in (first, again)] == [0, 0]
    assert (ended(run).state, ended(run).step) == ("done", 5)
    assert [(record["loss"], record["world"]) for record in run.metrics()] == [(1.0, 2)]
    files = [cluster.log, *(path for path in run.path.rglob("*") if path.is_file())]
    assert "the key is ***" in cluster.log.read_text()
    assert not [path for path in files if key.encode() in path.read_bytes()]


def test_unauthenticated_connections_are_closed_and_the_run_continues(run: RunDir, make_nodes: Make) -> None:
    cluster = make_nodes(workers=1)
    first = cluster.start(0)
    leader = leader_of(run)
    garbage = [b"GET / HTTP/1.1\r\n\r\n", b"[" * 4000 + b"\n", b'{"proof": "0"}\n', b"\0" * 100_000]
    calls = [socket.create_connection((leader["address"], leader["port"]), timeout=30) for _ in garbage]
    for call, data in zip(calls, garbage, strict=True):
        call.recv(4096)
        call.sendall(data)
    second = cluster.start(1)
    for call in calls:
        assert _is_closed(call)
    ready(cluster, 0, 1)
    finish(run, first, second)
    assert cluster.worlds() == [[0, 1]]


def _is_closed(call: socket.socket) -> bool:
    with call:
        try:
            return call.recv(4096) == b""
        except ConnectionResetError:
            return True
