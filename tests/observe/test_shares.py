"""Problems with the samples of a mixture are reported, and correct samples have none."""

import numpy as np
import pytest

from stoker.data.order import Mixed
from stoker.observe.audit_result import AuditResult
from stoker.observe.shares import BLOCK, Shares

WEIGHTS, COUNTS, SEQUENCES = (0.5, 0.3, 0.2), (700, 100, 9000), 64


def check(ids: np.ndarray) -> tuple[AuditResult, Shares]:
    result = AuditResult()
    shares = Shares([(f"part {i}", weight) for i, weight in enumerate(WEIGHTS)], list(COUNTS), SEQUENCES, result)
    for step in range(1, len(ids) // SEQUENCES + 1):
        result.steps = step
        shares.add(step, ids[(step - 1) * SEQUENCES : step * SEQUENCES])
        shares.end_step()
    shares.close(whole=True)
    return result, shares


def drawn(steps: int) -> np.ndarray:
    return Mixed(3, WEIGHTS, COUNTS).draw(0, steps * SEQUENCES).ids


@pytest.mark.parametrize("steps", [1, 50, 64, 65, 500])
def test_the_computed_order_has_no_problems(steps: int) -> None:
    result, shares = check(drawn(steps))
    assert (result.problems, result.missing, result.duplicated) == ([], 0, 0)
    assert sum(source.samples for source in shares.sources) == steps * SEQUENCES
    if steps == 500:
        assert [source.samples / (500 * SEQUENCES) for source in shares.sources] == pytest.approx(WEIGHTS, abs=0.01)
        assert 90 < shares.sources[1].epochs <= shares.sources[1].samples // COUNTS[1]


def test_a_source_with_one_sample_more_than_its_share_is_a_problem() -> None:
    ids = drawn(128)
    ids[np.argmax(ids >= sum(COUNTS[:2]))] = 0
    result, _ = check(ids)
    assert any(f"of the last {BLOCK} samples" in problem for problem in result.problems)


def test_a_sample_used_instead_of_another_is_counted() -> None:
    ids = drawn(128)
    small = np.flatnonzero((ids >= COUNTS[0]) & (ids < COUNTS[0] + COUNTS[1]))
    ids[small[ids[small] == COUNTS[0]]] = COUNTS[0] + 1
    result, _ = check(ids)
    assert result.missing
    assert result.duplicated


def test_a_part_without_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="part 1 has less than one sequence"):
        Shares([("part 0", 0.5), ("part 1", 0.5)], [700, 0], SEQUENCES, AuditResult())
