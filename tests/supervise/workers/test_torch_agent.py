"""With `on.rendezvous: etcd` torch's own agents start the workers, and agree on their ranks through a real etcd."""

import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from lab import golang
from stoker.rundir import RunDir
from stoker.spec.on import KubernetesOn
from stoker.spec.run import ScriptSpec
from stoker.supervise.workers.torch_agent import RankLogs, root_cause
from tests.ports import free_port
from tests.processes import is_alive
from tests.waiting import PATIENCE_S, until

Make = Callable[..., Any]
SCRIPT = """
import os, signal, sys, time
from pathlib import Path
rank, run = int(os.environ["RANK"]), Path(os.environ["STOKER_RUN_DIR"])
"""


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an etcd 3.5 server."""
    if not shutil.which("setpriv"):
        pytest.skip("etcd is built by the lab, which needs Linux")
    binary = golang.etcd() / "etcd"
    client, peer = (f"http://127.0.0.1:{free_port('127.0.0.1')}" for _ in range(2))
    argv = [binary, "--enable-v2", "--data-dir", tmp_path_factory.mktemp("etcd"), "--log-level=error"]
    argv += ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer]
    argv += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
    with subprocess.Popen(argv) as server:
        try:
            until(lambda: listens(server, client), every_s=0.05)
            yield client.removeprefix("http://")
        finally:
            server.kill()


@pytest.fixture
def make_nodes(tmp_path: Path, etcd: str, nodes: Make) -> Make:
    """make_nodes(script, workers=2): the two nodes of a run, not started."""

    def make(script: str, *, workers: int = 2, **on: Any) -> Any:
        file = tmp_path / "train.py"
        file.write_text(SCRIPT + dedent(script))
        run = RunDir(tmp_path / "tale")
        place = KubernetesOn(nodes="2", rendezvous="etcd", etcd=etcd, **on)
        run.create(ScriptSpec(name="tale", script=str(file), on=place), None)
        return nodes(run, sys.executable, str(file), workers=workers)

    return make


def test_two_nodes_train_with_the_ranks_that_torch_agreed_on(make_nodes: Make) -> None:
    nodes = make_nodes(
        """
        import torch
        import torch.distributed as dist
        dist.init_process_group("gloo")
        total = torch.tensor([float(rank)])
        dist.all_reduce(total)
        print("step 7 loss", total.item(), os.environ["TORCHELASTIC_RUN_ID"])
        print("worker", rank, "of", dist.get_world_size(), "by", os.getppid(), file=sys.stderr)
        """,
        workers=1,
    )
    assert [process.wait(timeout=PATIENCE_S) for process in (nodes.start(0), nodes.start(1))] == [0, 0], nodes.story()
    run = nodes.run
    assert run.exit().state == "done"
    assert "step 7 loss 1.0 tale-1-" in run.log(0).read_text()
    agents = {re.search(rf"worker {rank} of 2 by (\d+)", run.log(rank).read_text())[1] for rank in (0, 1)}
    assert len(agents) == 2
    assert [(record["step"], record["loss"], record["world"]) for record in run.metrics()] == [(7, 1.0, 2)]
    assert (run.logs / "agent-0.log").exists()


def test_a_worker_that_fails_is_reported_with_its_rank_and_all_restart(make_nodes: Make) -> None:
    nodes = make_nodes(
        """
        if rank == 2 and not (run / "once").exists():
            (run / "once").touch()
            print("the disk is on fire")
            sys.exit(9)
        """
    )
    assert [process.wait(timeout=PATIENCE_S) for process in (nodes.start(0), nodes.start(1))] == [0, 0], nodes.story()
    [failed] = nodes.events("failed")
    assert (failed["rank"], failed["code"], failed["line"]) == (2, 9, "the disk is on fire")
    assert [world["workers"] for world in nodes.events("world")] == [4, 4]


def test_a_run_that_is_stopped_leaves_no_worker_behind(make_nodes: Make) -> None:
    nodes = make_nodes(
        """
        signal.signal(signal.SIGTERM, lambda *_: (print("saved"), os._exit(0)))
        (run / f"pid-{rank}").write_text(str(os.getpid()))
        time.sleep(600)
        """
    )
    both = [nodes.start(0), nodes.start(1)]
    files = [nodes.run.path / f"pid-{rank}" for rank in range(4)]
    until(lambda: all(file.exists() and file.read_text() for file in files))
    for process in both:
        process.terminate()
    assert [process.wait(timeout=PATIENCE_S) for process in both] == [203, 203]
    assert not any(is_alive(int(file.read_text())) for file in files)
    assert nodes.run.exit().state == "paused"


def test_lines_without_a_rank_go_to_the_log_of_the_agent(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "tale")
    run.create(ScriptSpec(name="tale", script="train.py"), None)
    lines: list[bytes] = []
    logs = RankLogs(run, node=1, note=print, on_output=lines.append)
    logs.write(b"W1115 of torch\n[0] [1] one\n[0] two\n[3] three\n")
    logs.close()
    logged = {
        file.name: [line.split(" ", 1)[1] for line in file.read_text().splitlines()] for file in run.logs.iterdir()
    }
    assert logged == {"agent-1.log": ["W1115 of torch"], "rank-0.log": ["[1] one", "two"], "rank-3.log": ["three"]}
    assert lines == [b"[1] one\ntwo\n"]


def listens(server: "subprocess.Popen[bytes]", url: str) -> bool:
    assert server.poll() is None, "etcd has ended"
    with suppress(OSError):
        urllib.request.urlopen(f"{url}/health", timeout=5).close()
        return True
    return False


def test_the_root_cause_is_the_worker_with_an_error_of_its_own_even_if_a_victim_ended_first() -> None:
    summary = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-11-15_04:57:26
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 77)
"""
    victim = "[0] RuntimeError: Connection closed by peer\n"
    assert root_cause(f"{victim}[1] KeyError: 42\n{summary}", 0, 1) == (1, 1)
    assert root_cause(f"{victim}[1] step 5\n{summary}", 0, 1) == (0, 1)
    assert root_cause(f"[0] ValueError: no\n[1] KeyError: 42\n{summary}", 0, 1) == (0, 1)
    assert root_cause("[1] KeyError: 42\n", 4, 1) == (4, 1), "the agent reports nothing"
