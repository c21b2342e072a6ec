import pytest

from stoker.net.rounds import rounds


@pytest.mark.parametrize("number", [0, 1, 2, 3, 4, 5, 8, 33])
def test_every_pair_is_measured_once_and_no_node_twice_in_a_round(number: int) -> None:
    schedule = list(rounds(number))
    pairs = [pair for round in schedule for pair in round]
    assert sorted(pairs) == [(a, b) for a in range(number) for b in range(a + 1, number)]
    for round in schedule:
        nodes = [node for pair in round for node in pair]
        assert len(nodes) == len(set(nodes))


def test_after_three_rounds_every_node_was_measured_with_both_neighbours() -> None:
    first = [pair for round in list(rounds(101))[:3] for pair in round]
    assert {(at, at + 1) for at in range(100)} | {(0, 100)} == set(first)
