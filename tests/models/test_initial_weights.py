"""Initial weights depend on the seed, the parameter's name and the position in it, and on nothing else."""

import hashlib
import math

import pytest
import torch

from stoker.models import model_spec, weights
from stoker.models.build import build, draw_weights, materialise, new_model
from stoker.models.initial_weights import CPU_CHUNK, ONES, Distribution, ParameterBlock, draw
from stoker.spec.model import Model

NORMAL = Distribution(std=1.0)
SHAPES = {
    "gpt2": Model(layers=2, heads=2, width=32, context=16, vocab=99),
    "llama": Model(family="llama", layers=2, heads=2, width=32, context=16, vocab=99),
    "bert": Model(family="bert", layers=2, heads=2, width=32, context=16, vocab=99),
}


def drawn(*shape: int, seed: int = 7, name: str = "h.0.weight") -> torch.Tensor:
    tensor = torch.empty(*shape)
    draw(ParameterBlock.whole(tensor), NORMAL, seed=seed, name=name)
    return tensor


def test_the_numbers_are_normal() -> None:
    values = drawn(3 * CPU_CHUNK + 5).double()
    assert values.mean().item() == pytest.approx(0, abs=4 / math.sqrt(len(values)))
    assert values.std().item() == pytest.approx(1, abs=0.01)
    for bound, share in ((0.5, 0.38292), (1, 0.68269), (2, 0.95450), (3, 0.99730)):
        assert (values.abs() < bound).double().mean().item() == pytest.approx(share, abs=0.005)
    neighbours = torch.corrcoef(torch.stack([values[:-1], values[1:]]))[0, 1]
    assert abs(neighbours.item()) < 0.01


def reference(seed: int, name: str, position: int) -> float:
    """The published algorithms in Python's own integers: SplitMix64's output for a pair, then Box-Muller."""
    key = int.from_bytes(hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest())
    bits = (key + position // 2 * 0x9E3779B97F4A7C15) % 2**64
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB % 2**64
    bits ^= bits >> 31
    radius = math.sqrt(-2 * math.log(((bits >> 32) + 1) / 2**32))
    turn = math.sin if position % 2 else math.cos
    return radius * turn(2 * math.pi * (bits % 2**32) / 2**32)


def test_a_pair_of_numbers_is_the_hash_of_its_position() -> None:
    """A change on_cpu changes the weights that every run file and seed begins with."""
    expected = [reference(7, "h.0.weight", position) for position in range(1000)]
    assert drawn(1000).tolist() == pytest.approx(expected, rel=1e-7)
    assert drawn(2).tolist() == pytest.approx([-0.9192349910736084, -1.3170057535171509], rel=1e-7)


def test_another_seed_or_name_gives_other_numbers() -> None:
    values = [drawn(64), drawn(64, seed=8), drawn(64, name="h.1.weight")]
    assert len({tuple(value.tolist()) for value in values}) == 3
    assert torch.equal(drawn(64), values[0])


@pytest.mark.parametrize(
    "region",
    [(slice(0, 37), slice(0, 4099)), (slice(5, 30), slice(0, 4099)), (slice(36, 37), slice(0, 4099)),
     (slice(0, 37), slice(2048, 4096)), (slice(7, 19), slice(13, 1001))],
    ids=["whole", "rows", "last row", "columns", "inside"],
)  # fmt: skip
def test_a_shard_is_drawn_as_the_same_part_of_the_whole(region: tuple[slice, slice]) -> None:
    whole = drawn(37, 4099)
    shard = torch.empty_like(whole[region], memory_format=torch.contiguous_format)
    offsets = (region[0].start, region[1].start)
    draw(ParameterBlock(tensor=shard, shape=(37, 4099), offsets=offsets), NORMAL, seed=7, name="h.0.weight")
    assert torch.equal(shard, whole[region])


def test_a_shard_of_a_vector_or_of_three_dimensions_is_part_of_the_whole_too() -> None:
    vector, cube = drawn(1000), drawn(6, 7, 8)
    part, corner = torch.empty(300), torch.empty(2, 3, 4)
    draw(ParameterBlock(tensor=part, shape=(1000,), offsets=(650,)), NORMAL, seed=7, name="h.0.weight")
    draw(ParameterBlock(tensor=corner, shape=(6, 7, 8), offsets=(3, 2, 1)), NORMAL, seed=7, name="h.0.weight")
    assert torch.equal(part, vector[650:950])
    assert torch.equal(corner, cube[3:5, 2:5, 1:5])


def test_mean_and_spread_are_the_distributions() -> None:
    tensor = torch.empty(10_000)
    draw(ParameterBlock.whole(tensor), Distribution(mean=3.0, std=0.5), seed=1, name="x")
    assert tensor.mean().item() == pytest.approx(3, abs=0.02)
    assert tensor.std().item() == pytest.approx(0.5, rel=0.03)
    draw(ParameterBlock.whole(tensor), ONES, seed=1, name="x")
    assert tensor.eq(1).all()


@pytest.mark.parametrize("family", SHAPES)
def test_a_model_built_without_memory_gets_every_weight(family: str) -> None:
    shape = SHAPES[family]
    model = build(shape)
    assert all(p.is_meta for p in model.parameters())
    model = materialise(model, torch.device("cpu"))
    for p in model.parameters():
        p.data.fill_(math.nan)
    draw_weights(model, shape, seed=3)
    assert all(tensor.isfinite().all() for tensor in weights(model).values())
    again = new_model(shape, seed=3)
    assert all(torch.equal(tensor, weights(again)[name]) for name, tensor in weights(model).items())


@pytest.mark.parametrize("family", SHAPES)
def test_a_weight_does_not_depend_on_how_many_layers_there_are(family: str) -> None:
    """The scale of GPT-2's residual projections does, by design."""
    shape = SHAPES[family]
    deeper = weights(new_model(shape.model_copy(update={"layers": 3}), seed=3))
    blocks = model_spec(family).blocks
    for name, tensor in weights(new_model(shape, seed=3)).items():
        scale = math.sqrt(3 / 2) if name.endswith("c_proj.weight") else 1.0
        assert torch.allclose(tensor, deeper[name] * scale, rtol=1e-6), f"{blocks}: {name}"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_a_gpu_draws_the_numbers_of_a_cpu() -> None:
    on_cpu = drawn(1 << 24)
    on_gpu = torch.empty(1 << 24, device="cuda")
    draw(ParameterBlock.whole(on_gpu), NORMAL, seed=7, name="h.0.weight")
    differs = on_cpu != on_gpu.cpu()
    assert differs.double().mean() < 1e-6
    assert torch.allclose(on_cpu, on_gpu.cpu(), rtol=2e-7, atol=0)
