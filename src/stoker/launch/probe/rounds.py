"""Who measures with whom, and when: pure. In a round each node is in one pair at most: none disturbs another."""

import random
from collections.abc import Iterator

Pair = tuple[int, int]


def rounds(number: int, seed: int = 0) -> Iterator[list[Pair]]:
    """Every pair of `number` nodes exactly once: first each with the next one, as in a ring, then in random order.

    So whoever runs out of time has seen every node, and a fair sample of the rest.
    """
    ring = _ring(number)
    yield from ring
    seen = {pair for one in ring for pair in one}
    rest = _tournament(number)
    random.Random(seed).shuffle(rest)
    for one in rest:
        if left := [pair for pair in one if pair not in seen]:
            yield left


def _ring(number: int) -> list[list[Pair]]:
    """Two rounds, and for an odd number a third: the last with the first."""
    steps = [(at, at + 1) for at in range(number - 1)]
    found = [steps[::2], steps[1::2]]
    if number > 2:
        closing = (0, number - 1)
        if number % 2:
            found.append([closing])
        else:
            found[1].append(closing)
    return [one for one in found if one]


def _tournament(number: int) -> list[list[Pair]]:
    """The circle method: one stays, the others move on by a place each round."""
    players: list[int | None] = [*range(number)]
    if number % 2:
        players.append(None)
    found = []
    for _ in range(len(players) - 1):
        half = len(players) // 2
        meets = zip(players[:half], reversed(players[half:]), strict=True)
        found.append([(min(a, b), max(a, b)) for a, b in meets if a is not None and b is not None])
        players = [players[0], players[-1], *players[1:-1]]
    return found
