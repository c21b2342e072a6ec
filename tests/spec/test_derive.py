import random

import pytest

from stoker.spec.derive import derive, micro_batches, share, short_schedule
from stoker.spec.load import load
from stoker.spec.run import RunSpec
from stoker.train.optim import learning_rate


def spec(*overrides: str) -> RunSpec:
    return load(None, ["data=.", "batch.sequences=10", "batch.length=100", *overrides]).spec


@pytest.mark.parametrize(
    ("overrides", "steps", "positions"),
    [
        (["until.steps=7"], 7, 70),
        (["until.tokens=2500"], 3, 30),
        (["until.epochs=2"], 6, 54),
        (["until.steps=100", "until.epochs=1"], 3, 27),
        (["until.time=1h", "optim.schedule=constant"], None, None),
    ],
)
def test_the_first_limit_that_is_reached_ends_the_run(
    overrides: list[str], steps: int | None, positions: int | None
) -> None:
    derived = derive(spec(*overrides), samples=27)
    assert (derived.steps, derived.positions, derived.tokens_per_step) == (steps, positions, 1000)


def test_warmup_and_decay_are_steps_or_shares_of_the_horizon() -> None:
    derived = derive(spec("until.steps=1000", "optim.warmup=2%", "optim.decay=300"), samples=27)
    assert (derived.warmup, derived.decay, derived.horizon) == (20, 300, 1000)
    assert derive(spec("until.steps=1000", "optim.schedule=wsd"), samples=27).decay == 200


def test_a_schedule_keeps_its_first_horizon_unless_another_is_set() -> None:
    assert derive(spec("until.steps=2000"), samples=27, horizon=1000).horizon == 1000
    assert derive(spec("until.steps=2000", "optim.horizon=3000"), samples=27, horizon=1000).horizon == 3000


@pytest.mark.parametrize(
    ("overrides", "end", "rate"),
    [
        (["optim.horizon=20"], 20, 0.0),
        (["optim.horizon=20", "optim.floor=0.1", "optim.lr=1e-3"], 20, 1e-4),
        (["optim.horizon=20", "optim.schedule=wsd"], 20, 0.0),
        (["optim.warmup=2", "optim.decay=10"], 12, 0.0),
        (["optim.warmup=2", "optim.decay=10", "optim.floor=0.1"], None, None),
        (["optim.horizon=20", "optim.schedule=constant"], None, None),
        (["optim.horizon=200"], None, None),
        ([], None, None),
    ],
)
def test_a_schedule_that_ends_before_the_run_is_detected(
    overrides: list[str], end: int | None, rate: float | None
) -> None:
    run = spec("until.steps=80", *overrides)
    derived = derive(run, samples=10_000)
    short = short_schedule(run.optim, derived)
    assert (short and short.end, short and short.rate) == (end, rate and pytest.approx(rate))
    if short:
        rates = [learning_rate(run.optim, derived, step) for step in (short.end - 1, short.end, 80)]
        assert rates[0] > rates[1] == rates[2] == short.rate


def test_shares_cover_the_batch_once_and_micro_batches_hold_the_largest() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(200):
        sequences, world, largest = draw.randint(1, 300), draw.randint(1, 40), draw.randint(1, 32)
        shares = [share(sequences, rank=rank, world=world) for rank in range(world)]
        assert [sequence for part in shares for sequence in part] == list(range(sequences))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        number, size = micro_batches(sequences, world=world, max_size=largest)
        assert size <= largest
        assert (number - 1) * size < max(map(len, shares)) <= number * size
