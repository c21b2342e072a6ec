import itertools
import random

import numpy as np
import pytest

from stoker.data.order import Mixed, Shuffled, Windowed, batch, sample_ids, shares
from stoker.spec.data import BLOCK


@pytest.mark.parametrize("samples", [1, 2, 3, 4, 5, 7, 1000, 2**10 - 1, 2**10, 2**10 + 1, 2**17 + 1, 1_000_000])
def test_each_epoch_uses_every_sample_exactly_once(samples: int) -> None:
    for epoch in (0, 1, 5):
        ids = sample_ids(seed=3, samples=samples, start=epoch * samples, stop=(epoch + 1) * samples)
        assert np.array_equal(np.sort(ids), np.arange(samples))


def test_any_stretch_of_the_order_is_the_same_however_it_is_asked_for() -> None:
    seed = int(np.random.default_rng().integers(2**62))
    print(f"{seed=}")
    all_ids = sample_ids(seed=seed, samples=101, start=0, stop=1000)
    rng = np.random.default_rng(seed)
    for _ in range(50):
        start, stop = sorted(rng.integers(0, 1001, 2).tolist())
        assert np.array_equal(sample_ids(seed=seed, samples=101, start=start, stop=stop), all_ids[start:stop])


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


def test_a_window_is_a_permutation_of_its_own_samples_and_needs_no_others() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(50):
        samples, window, key = draw.randrange(1, 400), draw.randrange(1, 90), draw.randrange(2**63)
        order = Windowed(key, samples, window)
        ids = order.draw(0, samples).ids
        for first in range(0, samples, window):
            part = ids[first : first + window]
            assert sorted(part) == list(range(first, min(first + window, samples)))
        full_windows = samples // window * window
        assert np.array_equal(
            Windowed(key, 10 * samples + window, window).draw(0, full_windows).ids, ids[:full_windows]
        )


def test_the_second_epoch_of_a_stream_is_shuffled_as_a_whole() -> None:
    drawn = Windowed(3, 1000, 64).draw(0, 3000)
    assert sorted(drawn.ids[1000:2000]) == sorted(drawn.ids[2000:]) == list(range(1000))
    assert drawn.epochs.tolist() == [0] * 1000 + [1] * 1000 + [2] * 1000
    assert not np.array_equal(drawn.ids[1000:2000] // 64, np.arange(1000) // 64)


@pytest.mark.parametrize("order", [Windowed(5, 777, 50), Mixed(5, (0.7, 0.2, 0.1), (300, 7, 5000))])
def test_any_stretch_is_found_without_the_ones_before(order) -> None:
    all_drawn = order.draw(0, 10_000)
    for start, stop in ((0, 0), (0, 1), (49, 52), (777, 778), (4090, 4100), (3, 9999), (8192, 8193)):
        part = order.draw(start, stop)
        assert np.array_equal(part.ids, all_drawn.ids[start:stop])
        assert np.array_equal(part.epochs, all_drawn.epochs[start:stop])


def test_a_mixture_has_exact_shares_in_every_block_and_each_source_all_of_itself_before_any_again() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(12):
        number = draw.randrange(2, 6)
        weights = tuple(draw.choice([draw.uniform(0.01, 1), float(draw.randrange(1, 100))]) for _ in range(number))
        samples = tuple(draw.choice([40, draw.randrange(100, 3000), 50_000]) for _ in range(number))
        blocks = draw.randrange(1, 5)
        drawn = Mixed(draw.randrange(2**63), weights, samples).draw(0, blocks * BLOCK)
        ends = np.cumsum(samples)
        sources = np.searchsorted(ends, drawn.ids, side="right").reshape(blocks, BLOCK)
        expected = shares(weights)
        assert sum(expected) == BLOCK
        assert all(abs(e - BLOCK * w / sum(weights)) < 1 for e, w in zip(expected, weights, strict=True))
        for block in sources:
            assert np.bincount(block, minlength=number).tolist() == expected
        for source in range(number):
            ids_of_source = drawn.ids[sources.ravel() == source] - (ends[source] - samples[source])
            used = np.bincount(ids_of_source, minlength=samples[source])
            assert used.max() - used.min() <= 1
            epochs = drawn.epochs[sources.ravel() == source]
            for epoch in range(len(ids_of_source) // samples[source]):
                assert sorted(ids_of_source[epochs == epoch]) == list(range(samples[source]))


def test_sources_of_one_size_are_not_shuffled_alike() -> None:
    drawn = Mixed(1, (1.0, 1.0), (2048, 2048)).draw(0, BLOCK)
    first, second = drawn.ids[drawn.ids < 2048], drawn.ids[drawn.ids >= 2048] - 2048
    assert not np.array_equal(first, second)
