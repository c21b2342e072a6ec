"""The degrees of parallelism multiply to the number of workers, and say what each worker trains on and holds."""

import pytest

from stoker.spec.errors import UserError
from stoker.train.parallel import STRATEGIES, Parallel, strategy


def test_degrees_must_multiply_to_the_number_of_workers() -> None:
    assert Parallel(world=24, data=2, shard=3, tensor=2, context=2).batch_shares == 6
    with pytest.raises(UserError, match=r"data 2 × shard 2 × tensor 1 × context 1 is not the number of workers, 6"):
        Parallel(world=6, data=2, shard=2)
    with pytest.raises(UserError, match="product is the number of workers"):
        Parallel(world=1, data=-1, shard=-1)


def test_workers_that_split_a_matrix_or_a_sequence_train_on_the_same_samples() -> None:
    parallel = Parallel(world=16, data=2, shard=2, tensor=2, context=2)
    assert [parallel.batch_share(rank) for rank in range(16)] == [share for share in range(4) for _ in range(4)]
    replicated = Parallel(world=4, data=4)
    assert [replicated.batch_share(rank) for rank in range(4)] == [0, 1, 2, 3]


def test_a_worker_holds_its_part_of_the_model_state() -> None:
    assert Parallel(world=8, data=8).held(1001) == 1001
    assert Parallel(world=8, shard=4, tensor=2).held(1001) == 126
    assert Parallel(world=8, data=4, context=2).held(1001) == 1001


def test_every_strategy_can_be_made() -> None:
    for kind in STRATEGIES:
        assert strategy(kind, Parallel(world=1)).parallel.world == 1
