"""What tests of training share: a worker in this process, one thread, a group of one."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from stoker.rundir import RunDir
from tests.train.working import working


@pytest.fixture
def worker(tmp_path: Path, tokens: Path) -> Iterator[Callable[..., RunDir]]:
    """Train as the only worker, in the folder `here`; the same words again go on."""
    with working(tmp_path / "here", tokens) as train:
        yield train


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tests run side by side, and threads that wait for each other's core take ten times as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
