"""The engine: built without memory, then given weights, and the same gradients whatever the micro-batch."""

import pytest
import torch

from stoker.models.build import new_model
from stoker.spec.run import RunSpec
from stoker.train.batches import TrainingBatch
from stoker.train.choices import Choices
from stoker.train.devices import device
from stoker.train.engine import Engine
from stoker.train.objectives.causal import Causal
from stoker.train.process_group import Ranks

FP32 = Choices(precision="fp32", compile=False, micro=1)


def spec(**model: object) -> RunSpec:
    sizes = {"layers": 2, "heads": 2, "width": 32, "context": 16, "vocab": 64}
    return RunSpec.model_validate(
        {"data": {"path": "x"}, "until": {"steps": 1}, "batch": {"length": 16}, "model": sizes | model, "seed": 5}
    )


def unbuilt(spec: RunSpec, *, rank: int = 0, world: int = 1) -> Engine:
    ranks = Ranks(rank=rank, local_rank=rank, world=world, attempt=1)
    return Engine(spec, ranks, device("cpu", local_rank=0, local_world=1), Causal())


def engine(accumulation: int, micro: int) -> Engine:
    made = unbuilt(spec())
    made.materialise(FP32, accumulation=accumulation, micro=micro)
    return made


def test_a_model_has_a_size_before_it_has_memory_and_its_weights_follow_from_the_seed() -> None:
    made = unbuilt(spec())
    assert all(p.is_meta for p in made.model.parameters())
    assert made.size == sum(p.numel() for p in new_model(spec().model).parameters())
    made.materialise(FP32, accumulation=1, micro=1)
    wanted = dict(new_model(spec().model, seed=5).named_parameters())
    assert all(torch.equal(p, wanted[name]) for name, p in made.model.named_parameters())


def test_the_weights_do_not_depend_on_the_rank_or_the_number_of_workers() -> None:
    torch.manual_seed(99)
    made = unbuilt(spec(), rank=2, world=3)
    made.materialise(FP32, accumulation=1, micro=1)
    wanted = dict(new_model(spec().model, seed=5).named_parameters())
    assert all(torch.equal(p, wanted[name]) for name, p in made.model.named_parameters())


def test_the_users_own_model_keeps_the_weights_that_its_code_gives_it(mine) -> None:
    """It may draw them with anything, and need memory to do so."""
    code = """
import numpy as np
import torch
from torch import nn

class Net(nn.Embedding):
    def __init__(self, shape):
        super().__init__(shape.vocab, shape.vocab)
        drawn = torch.from_numpy(np.random.randn(shape.vocab, shape.vocab)).float()
        assert drawn.sum().item() != 0
        self.weight = nn.Parameter(drawn)

def build(shape):
    return Net(shape)
"""
    family, weights = f"{mine(code)}:build", []
    for rank in range(2):
        made = unbuilt(spec(family=family), rank=rank, world=2)
        made.materialise(FP32, accumulation=1, micro=1)
        weights.append(made.model.get_parameter("weight").detach().clone())
    assert torch.equal(*weights)
    assert weights[0].std().item() == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize(("accumulation", "micro"), [(2, 4), (3, 3), (4, 2), (7, 1), (9, 1)])
def test_micro_batches_of_any_size_give_the_gradients_of_one_big_batch(accumulation: int, micro: int) -> None:
    rows = torch.randint(64, (7, 17), generator=torch.Generator().manual_seed(3))
    whole, parts = engine(1, 7), engine(accumulation, micro)
    loss, norm = whole.backward(batch(rows, padded=7), [7 * 16])
    same_loss, same_norm = parts.backward(batch(rows, padded=accumulation * micro), [7 * 16])
    assert float(same_loss) == pytest.approx(float(loss), rel=1e-6)
    assert same_norm == pytest.approx(norm, rel=1e-6)
    for expected, flat in zip(whole.gradients.flat, parts.gradients.flat, strict=True):
        assert (expected - flat).abs().max() <= 1e-6 * expected.abs().max()


def batch(rows: torch.Tensor, *, padded: int) -> TrainingBatch:
    room = torch.zeros(padded, rows.shape[1], dtype=torch.int64)
    room[: len(rows)] = rows
    ids = torch.arange(len(rows)).numpy()
    return TrainingBatch(step=1, samples=ids, epochs=0 * ids, rows=room)
