"""Workers meet on addresses that only they can reach: torch's store and gloo have no authentication."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from textwrap import dedent

import pytest

from stoker.api.opening import begin
from stoker.rundir import RunDir
from stoker.spec.contract import ENV_STORE_FD
from stoker.spec.load import load
from stoker.train.tcp_store import connect_store
from tests.ports import free_port
from tests.processes import descendants, listening
from tests.training import TINY
from tests.waiting import PATIENCE_S, until

Start = Callable[..., "subprocess.Popen[bytes]"]
# As on a machine with several interfaces: gloo would use this interface, if it existed.
ELSEWHERE = {"GLOO_SOCKET_IFNAME": "none0"}
SCRIPT = """
import time
from pathlib import Path
import os
import torch.distributed as dist
for _ in range(2):
    dist.init_process_group("gloo")
    dist.barrier()
    dist.destroy_process_group()
dist.init_process_group("gloo")
print("step 1 loss 1", flush=True)
while not Path(os.environ["STOKER_RUN_DIR"], "finish").exists(): time.sleep(0.05)
"""


@pytest.fixture
def supervise() -> Iterator[Start]:
    """The supervisor of a run with one worker; stopped when the test ends."""
    started: list[subprocess.Popen[bytes]] = []

    def start(run: RunDir, *command: str) -> "subprocess.Popen[bytes]":
        argv = [sys.executable, "-m", "stoker.supervise", str(run.path), "--workers", "1", "--", *command]
        started.append(subprocess.Popen(argv[: None if command else -1], env=os.environ | ELSEWHERE))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_run_on_one_node_listens_on_no_address_that_others_can_reach(
    tmp_path: Path, tokens: Path, supervise: Start
) -> None:
    run = begin(load(None, ["name=tale", f"data={tokens}", *TINY, "until.steps=100k"]).spec, runs=tmp_path).run
    process = supervise(run)
    until(run.metrics)
    assert listening(process.pid, *descendants(process.pid)) == {"127.0.0.1"}
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=PATIENCE_S) == 75


def test_a_users_script_finds_a_store_that_only_this_node_can_reach(tmp_path: Path, supervise: Start) -> None:
    (tmp_path / "train.py").write_text(dedent(SCRIPT))
    run = begin(load(None, ["name=tale", f"script={tmp_path / 'train.py'}"]).spec, runs=tmp_path).run
    process = supervise(run, sys.executable, str(tmp_path / "train.py"))
    until(run.metrics)
    below = descendants(process.pid)
    assert listening(process.pid, *below) == {"127.0.0.1"}
    (run.path / "finish").touch()
    assert process.wait(timeout=PATIENCE_S) == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in below)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("address", ["127.0.0.2", "::1"])
def test_the_first_worker_serves_the_store_only_on_the_address_of_the_run(
    monkeypatch: pytest.MonkeyPatch, address: str, given: bool
) -> None:
    port = free_port(address)
    monkeypatch.setenv("MASTER_ADDR", address)
    monkeypatch.setenv("MASTER_PORT", str(port))
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    if given:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, port), family=family)
        monkeypatch.setenv(ENV_STORE_FD, str(listener.detach()))
    before = listening(os.getpid())
    served = connect_store(serve=True, world=1, timeout=timedelta(seconds=60))
    assert listening(os.getpid()) - before <= {address}
    assert address in listening(os.getpid())
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")  # set by torchrun when it serves the store itself
    connect_store(serve=True, world=1, timeout=timedelta(seconds=60)).set("key", "value")
    assert served.get("key") == b"value"
