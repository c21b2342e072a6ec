"""What is wrong with the samples of a mixture is found, and what is right is not."""

import numpy as np
import pytest

from stoker.data.order import Mixed
from stoker.observe.audit_result import AuditResult
from stoker.observe.shares import BLOCK, Shares

WEIGHTS, COUNTS, SEQUENCES = (0.5, 0.3, 0.2), (700, 100, 9000), 64


def check(ids: np.ndarray) -> tuple[AuditResult, Shares]:
    found = AuditResult()
    shares = Shares([(f"part {i}", weight) for i, weight in enumerate(WEIGHTS)], list(COUNTS), SEQUENCES, found)
    for step in range(1, len(ids) // SEQUENCES + 1):
        found.steps = step
        shares.add(step, ids[(step - 1) * SEQUENCES : step * SEQUENCES])
        shares.end_step()
    shares.close(whole=True)
    return found, shares


def drawn(steps: int) -> np.ndarray:
    return Mixed(3, WEIGHTS, COUNTS).draw(0, steps * SEQUENCES).ids


@pytest.mark.parametrize("steps", [1, 50, 64, 65, 500])
def test_the_order_itself_is_proven(steps: int) -> None:
    found, shares = check(drawn(steps))
    assert (found.problems, found.missing, found.duplicated) == ([], 0, 0)
    assert sum(source.samples for source in shares.sources) == steps * SEQUENCES
    if steps == 500:
        assert [source.samples / (500 * SEQUENCES) for source in shares.sources] == pytest.approx(WEIGHTS, abs=0.01)
        assert 90 < shares.sources[1].epochs <= shares.sources[1].samples // COUNTS[1]


def test_a_source_that_has_one_sample_more_than_its_weight_is_found() -> None:
    ids = drawn(128)
    ids[np.argmax(ids >= sum(COUNTS[:2]))] = 0
    found, _ = check(ids)
    assert any(f"of the last {BLOCK} samples" in problem for problem in found.problems)


def test_a_sample_used_in_the_place_of_another_is_found() -> None:
    ids = drawn(128)
    small = np.flatnonzero((ids >= COUNTS[0]) & (ids < COUNTS[0] + COUNTS[1]))
    ids[small[ids[small] == COUNTS[0]]] = COUNTS[0] + 1
    found, _ = check(ids)
    assert found.missing
    assert found.duplicated
