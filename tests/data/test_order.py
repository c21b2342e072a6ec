import itertools

import numpy as np
import pytest

from stoker.data.order import Shuffled, batch, sample_ids


@pytest.mark.parametrize("samples", [1, 2, 3, 4, 5, 7, 1000, 2**10 - 1, 2**10, 2**10 + 1, 2**17 + 1, 1_000_000])
def test_each_epoch_uses_every_sample_exactly_once(samples: int) -> None:
    for epoch in (0, 1, 5):
        ids = sample_ids(seed=3, samples=samples, start=epoch * samples, stop=(epoch + 1) * samples)
        assert np.array_equal(np.sort(ids), np.arange(samples))


def test_any_stretch_of_the_order_is_the_same_however_it_is_asked_for() -> None:
    seed = int(np.random.default_rng().integers(2**62))
    print(f"{seed=}")
    whole = sample_ids(seed=seed, samples=101, start=0, stop=1000)
    rng = np.random.default_rng(seed)
    for _ in range(50):
        start, stop = sorted(rng.integers(0, 1001, 2).tolist())
        assert np.array_equal(sample_ids(seed=seed, samples=101, start=start, stop=stop), whole[start:stop])


def test_the_order_does_not_change_between_releases() -> None:
    assert sample_ids(seed=0, samples=10, start=0, stop=10).tolist() == [3, 7, 2, 9, 0, 4, 8, 5, 1, 6]


def test_the_order_is_well_mixed() -> None:
    n = 100_003
    ids = sample_ids(seed=1, samples=n, start=0, stop=n)
    displacement = np.abs(ids - np.arange(n)).mean() / n
    assert abs(displacement - 1 / 3) < 0.01  # of a random permutation
    assert (np.abs(np.diff(ids)) == 1).sum() < 20  # two are expected
    assert abs(np.corrcoef(ids[:-1], ids[1:])[0, 1]) < 0.02
    halves = [(ids[i : i + 1000] < n // 2).mean() for i in range(0, n - 1000, 1000)]
    assert min(halves) > 0.4
    assert max(halves) < 0.6


def test_small_sets_reach_every_arrangement() -> None:
    orders = {tuple(sample_ids(seed=seed, samples=4, start=0, stop=4).tolist()) for seed in range(2000)}
    assert orders == set(itertools.permutations(range(4)))


def test_seeds_and_epochs_have_orders_of_their_own() -> None:
    n = 1000
    orders = [
        sample_ids(seed=seed, samples=n, start=epoch * n, stop=(epoch + 1) * n)
        for seed in (0, 1, 2**63 - 1)
        for epoch in (0, 1, 2)
    ]
    for a, b in itertools.combinations(orders, 2):
        assert (a == b).sum() < 15  # one is expected


def test_a_place_in_a_trillion_samples_is_found_directly() -> None:
    n = 10**12
    ids = batch(Shuffled(9, n), sequences=512, step=3 * n // 512 + 7).ids
    assert len(np.unique(ids)) == 512
    assert ids.min() >= 0
    assert ids.max() < n
    assert ids.min() < n // 20
    assert ids.max() > n - n // 20


def test_steps_go_on_through_the_end_of_an_epoch() -> None:
    ids = np.concatenate([batch(Shuffled(5, 10), sequences=4, step=step).ids for step in (1, 2, 3, 4, 5)])
    assert sorted(ids[:10].tolist()) == sorted(ids[10:].tolist()) == list(range(10))


def test_the_last_step_of_a_run_of_whole_epochs_is_short() -> None:
    sizes = [len(batch(Shuffled(5, 10), sequences=4, step=step, positions=10).ids) for step in (1, 2, 3, 4)]
    assert sizes == [4, 4, 2, 0]


def test_a_batch_larger_than_the_epoch_takes_several() -> None:
    ids = batch(Shuffled(5, 3), sequences=7, step=1).ids
    assert np.bincount(ids).tolist() in ([3, 2, 2], [2, 3, 2], [2, 2, 3])
