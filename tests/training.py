"""Shared by the tests of training: a worker in this process, one thread, a process group of one, a run held at a step.

A worker in this process does all that `python -m stoker.train` does, without the seconds that a new process takes to
start. Each conftest.py that needs these fixtures imports them from here.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from stoker.api.opening import begin
from stoker.rundir import RunDir
from stoker.spec.contract import ENV_ATTEMPT
from stoker.spec.load import load
from stoker.train.__main__ import main
from tests.ports import free_port

TINY = [
    "model.layers=2", "model.heads=2", "model.width=32", "model.context=32", "batch.sequences=4", "batch.length=32",
    "precision=fp32", "checkpoint.every=1000", "log.every=1", "eval.every=0", "optim.warmup=2", "optim.lr=1e-3",
    "on.device=cpu", "on.workers=1", "log.tensorboard=false",
]  # fmt: skip

# A callback `hold`: step N does not end while a file `hold-N` exists in the folder that the run was started in.
HOLD = """
import time
from pathlib import Path

def hold(record):
    while Path(f"hold-{record['step']}").exists():
        time.sleep(0.01)
"""


@contextmanager
def training_in_process(runs: Path, tokens: Path) -> Iterator[Callable[..., RunDir]]:
    """A function that trains as the only worker and must end with exit code `code`; the same overrides resume."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # see one_thread

    def train(*overrides: str, code: int = 0, shaped: bool = True) -> RunDir:
        tiny = [override for override in TINY if shaped or not override.startswith("model.")]
        opened = begin(load(None, [f"data={tokens}", *tiny, *overrides]).spec, runs=runs)
        attempt = opened.run.next_attempt()
        alone = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1, ENV_ATTEMPT: attempt}
        for name, value in {**alone, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port("127.0.0.1")}.items():
            environment.setenv(name, str(value))
        assert main(opened.run) == code, opened.run.exit()
        return opened.run

    with pytest.MonkeyPatch.context() as environment:
        yield train
    torch.set_num_threads(threads)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def worker(tmp_path: Path, tokens: Path) -> Iterator[Callable[..., RunDir]]:
    """Train as the only worker, in the folder `here`; the same overrides again resume the run."""
    with training_in_process(tmp_path / "here", tokens) as train:
        yield train


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tests run in parallel, and threads that wait for each other's core take ten times as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()
