"""Gradients: the sum over workers in a fixed order, and the same whatever the micro-batch."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from stoker.spec.run import RunSpec
from stoker.train.batches import Batch
from stoker.train.choices import Choices
from stoker.train.devices import device
from stoker.train.dist import Ranks
from stoker.train.engine import Engine
from stoker.train.objectives.causal import Causal
from stoker.train.parallel import BUCKET_BYTES, Gradients

WORLD = 2
PEER = """
import sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch import nn
from stoker.train.objectives.causal import Causal
from stoker.train.parallel import Gradients

rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=world)
rows = 2 ** 20 + 1  # every matrix is a bucket of its own
parameters = [nn.Parameter(torch.ones(rows, 4)) for _ in range(3)] + [nn.Parameter(torch.ones(3)) for _ in range(2)]
gradients = Gradients(parameters, world=world)
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
    (said,) = {(tmp_path / f"rank-{rank}").read_text() for rank in range(WORLD)}
    rows = 4 * (2**20 + 1)
    step = [6.0, 60.0, 600.0, 6_000.0, 20_000.0]  # two micro-batches of (1 + 2) · 10^i; the last without worker 1
    assert said == repr(([step, step], [rows + 6, rows, rows]))


def test_buckets_follow_the_parameters_backwards_and_hold_views_of_their_gradients() -> None:
    big = BUCKET_BYTES // 4
    parameters = [nn.Parameter(torch.ones(n)) for n in (5, big, 7, 8)]
    gradients = Gradients(parameters, world=1)
    assert [len(flat) for flat in gradients.flat] == [15, big, 5]
    for p in parameters:
        p.grad.fill_(2.0)  # type: ignore[union-attr]
    assert all((flat == 2).all() for flat in gradients.flat)
    assert gradients.norm().item() == pytest.approx(2 * (big + 20) ** 0.5, rel=1e-5)
    gradients.scale(0.5)
    assert all((p.grad == 1).all() for p in parameters)
    gradients.zero()
    assert all((p.grad == 0).all() for p in parameters)


def engine(accumulation: int, micro: int) -> Engine:
    spec = RunSpec.model_validate(
        {
            "data": {"path": "x"},
            "until": {"steps": 1},
            "batch": {"length": 16},
            "model": {"layers": 2, "heads": 2, "width": 32, "context": 16, "vocab": 64},
        }
    )
    alone = Ranks(rank=0, local_rank=0, world=1, attempt=1)
    made = Engine(spec, alone, device("cpu", local_rank=0, local_world=1), Causal())
    made.settle(Choices(precision="fp32", compile=False, micro=micro), accumulation=accumulation, micro=micro)
    return made


@pytest.mark.parametrize(("accumulation", "micro"), [(2, 4), (3, 3), (4, 2), (7, 1), (9, 1)])
def test_micro_batches_of_any_size_give_the_gradients_of_one_big_batch(accumulation: int, micro: int) -> None:
    rows = torch.randint(64, (7, 17), generator=torch.Generator().manual_seed(3))
    whole, parts = engine(1, 7), engine(accumulation, micro)
    loss, norm = whole.backward(batch(rows, padded=7), [7 * 16])
    same_loss, same_norm = parts.backward(batch(rows, padded=accumulation * micro), [7 * 16])
    assert float(same_loss) == pytest.approx(float(loss), rel=1e-6)
    assert same_norm == pytest.approx(norm, rel=1e-6)
    for one, other in zip(whole.gradients.flat, parts.gradients.flat, strict=True):
        assert (one - other).abs().max() <= 1e-6 * one.abs().max()


def batch(rows: torch.Tensor, *, padded: int) -> Batch:
    room = torch.zeros(padded, rows.shape[1], dtype=torch.int64)
    room[: len(rows)] = rows
    ids = torch.arange(len(rows)).numpy()
    return Batch(step=1, samples=ids, epochs=0 * ids, rows=room)
