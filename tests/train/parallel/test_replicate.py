"""Gradients are summed over all workers in a fixed order, in buckets that never change."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from stoker.train.parallel.replicate import BUCKET_BYTES, SummedGradients

WORLD = 2
PEER = """
import sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch import nn
from stoker.train.parallel.replicate import SummedGradients

rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=world)
rows = 2 ** 20 + 1  # every matrix is a bucket of its own
parameters = [nn.Parameter(torch.ones(rows, 4)) for _ in range(3)] + [nn.Parameter(torch.ones(3)) for _ in range(2)]
gradients = SummedGradients(parameters, world=world)
sums = []
for _ in range(2):
    gradients.zero()
    for micro in range(2):
        if micro == 1:
            gradients.send_with_next_backward()
        # the second worker does not use the last parameter: its bucket must be sent all the same
        used = parameters[:-1] if rank == 1 else parameters
        sum(((rank + 1) * 10 ** i * p).sum() for i, p in enumerate(used)).backward()
    gradients.finish()
    sums.append([float(p.grad.flatten()[0]) for p in parameters])
    assert all((p.grad == p.grad.flatten()[0]).all() for p in parameters)
(folder / f"rank-{rank}").write_text(repr((sums, [len(flat) for flat in gradients.flat])))
dist.destroy_process_group()
"""


def test_every_worker_holds_the_sum_over_all_of_them_in_the_same_buckets(tmp_path: Path) -> None:
    peers = [
        subprocess.Popen([sys.executable, "-c", PEER, str(rank), str(WORLD), str(tmp_path)]) for rank in range(WORLD)
    ]
    assert [peer.wait(timeout=300) for peer in peers] == [0] * WORLD
    (reported,) = {(tmp_path / f"rank-{rank}").read_text() for rank in range(WORLD)}
    rows = 4 * (2**20 + 1)
    step = [6.0, 60.0, 600.0, 6_000.0, 20_000.0]  # two micro-batches of (1 + 2) · 10^i; the last without worker 1
    assert reported == repr(([step, step], [rows + 6, rows, rows]))


def test_buckets_follow_the_parameters_backwards_and_hold_views_of_their_gradients() -> None:
    big = BUCKET_BYTES // 4
    parameters = [nn.Parameter(torch.ones(n)) for n in (5, big, 7, 8)]
    gradients = SummedGradients(parameters, world=1)
    assert [len(flat) for flat in gradients.flat] == [15, big, 5]
    for p in parameters:
        p.grad.fill_(2.0)  # type: ignore[union-attr]
    assert all((flat == 2).all() for flat in gradients.flat)
    assert gradients.norm().item() == pytest.approx(2 * (big + 20) ** 0.5, rel=1e-5)
    gradients.scale(0.5)
    assert all((p.grad == 1).all() for p in parameters)
    gradients.zero()
    assert all((p.grad == 0).all() for p in parameters)
