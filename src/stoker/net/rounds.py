"""The schedule of the link measurements. Pure. A node is in one pair per round, so that no pair disturbs another."""

import random
from collections.abc import Iterator

Pair = tuple[int, int]


def rounds(nodes: int, seed: int = 0) -> Iterator[list[Pair]]:
    """Every pair of nodes exactly once: first each node with the next, as in a ring, then the rest in random order.

    A caller that runs out of time has measured every node, and a fair sample of the other pairs.
    """
    ring = _ring(nodes)
    yield from ring
    measured = {pair for pairs in ring for pair in pairs}
    rest = _tournament(nodes)
    random.Random(seed).shuffle(rest)
    for pairs in rest:
        if remaining := [pair for pair in pairs if pair not in measured]:
            yield remaining


def _ring(nodes: int) -> list[list[Pair]]:
    """Two rounds; a third one for an odd number of nodes, which pairs the last with the first."""
    neighbours = [(node, node + 1) for node in range(nodes - 1)]
    ring = [neighbours[::2], neighbours[1::2]]
    if nodes > 2:
        closing = (0, nodes - 1)
        if nodes % 2:
            ring.append([closing])
        else:
            ring[1].append(closing)
    return [pairs for pairs in ring if pairs]


def _tournament(nodes: int) -> list[list[Pair]]:
    """The circle method of round-robin tournaments: one player stays, the others move one seat each round."""
    players: list[int | None] = [*range(nodes)]
    if nodes % 2:
        players.append(None)
    schedule = []
    for _ in range(len(players) - 1):
        half = len(players) // 2
        meetings = zip(players[:half], reversed(players[half:]), strict=True)
        schedule.append([(min(a, b), max(a, b)) for a, b in meetings if a is not None and b is not None])
        players = [players[0], players[-1], *players[1:-1]]
    return schedule
