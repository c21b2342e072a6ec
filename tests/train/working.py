"""A worker in this process: all of `python -m stoker.train` without the seconds that a new process takes to start."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

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


@contextmanager
def working(runs: Path, tokens: Path) -> Iterator[Callable[..., RunDir]]:
    """Train as the only worker; the same words again go on. Ends with the exit code that it is told to expect."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in one_thread

    def train(*words: str, code: int = 0, shaped: bool = True) -> RunDir:
        tiny = [word for word in TINY if shaped or not word.startswith("model.")]
        opened = begin(load(None, [f"data={tokens}", *tiny, *words]).spec, runs=runs)
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
