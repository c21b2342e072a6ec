import pytest

from stoker.net.rounds import rounds


@pytest.mark.parametrize("number", [0, 1, 2, 3, 4, 5, 8, 33])
def test_every_pair_meets_once_and_nobody_twice_in_a_round(number: int) -> None:
    played = list(rounds(number))
    pairs = [pair for one in played for pair in one]
    assert sorted(pairs) == [(a, b) for a in range(number) for b in range(a + 1, number)]
    for one in played:
        players = [player for pair in one for player in pair]
        assert len(players) == len(set(players))


def test_after_three_rounds_every_node_has_met_both_its_neighbours() -> None:
    first = [pair for one in list(rounds(101))[:3] for pair in one]
    assert {(at, at + 1) for at in range(100)} | {(0, 100)} == set(first)
