import re
from pathlib import Path

import numpy as np
import pytest

from stoker.data import order
from stoker.data.shards import TokenSet
from stoker.observe.step_batch import documents, step_batch, stretch_of, stretches_of, token_set
from stoker.rundir import DataRef
from stoker.spec.errors import UserError
from tests.observe.ledgers import LENGTH, SEED, SEQUENCES, Ledgers


def test_a_step_is_that_of_the_last_attempt_that_trained_it(ledgers: Ledgers, tokens: TokenSet) -> None:
    ledgers.attempt(1, start=0, stop=57, world=2)
    ledgers.attempt(2, start=50, stop=50, world=3)
    ledgers.attempt(3, start=50, stop=71, world=4)
    ledgers.attempt(4, start=40, stop=90, world=1)
    assert [(s.ledger.attempt, s.start, s.stop, s.drawn) for s in stretches_of(ledgers.dir)] == [
        (1, 0, 40, 0),
        (4, 40, 90, 400),
    ]
    for step, attempt, world in ((1, 1, 2), (40, 1, 2), (41, 4, 1), (90, 4, 1)):
        batch = step_batch(ledgers.dir, step, tokens)
        assert (batch.attempt, batch.world, len(batch.ranks)) == (attempt, world, world)
        assert (batch.in_order, batch.in_shards) == (True, True)
        assert (
            np.concatenate(batch.ranks).tolist()
            == order.batch(order.Shuffled(SEED, ledgers.samples), sequences=SEQUENCES, step=step).ids.tolist()
        )


def test_steps_after_a_short_step_are_in_order(ledgers: Ledgers, tokens: TokenSet) -> None:
    last = -(-ledgers.samples // SEQUENCES)
    assert ledgers.samples % SEQUENCES
    ledgers.attempt(1, start=0, stop=last, epochs=1)
    ledgers.attempt(2, start=last, stop=last + 20, drawn=ledgers.samples, epochs=2)
    short = step_batch(ledgers.dir, last, tokens)
    assert sum(map(len, short.ranks)) == ledgers.samples % SEQUENCES
    assert short.in_order
    assert [s.drawn for s in stretches_of(ledgers.dir)] == [0, ledgers.samples]
    assert step_batch(ledgers.dir, last + 7, tokens).in_order


def test_samples_out_of_order_and_other_tokens_are_detected(ledgers: Ledgers, tokens: TokenSet) -> None:
    ledgers.attempt(1, start=0, stop=5)
    path = ledgers.dir.ledger / "attempt-0001-rank-0000.jsonl"
    lines = path.read_text().splitlines()
    lines[3] = lines[4].replace('"step":4', '"step":3')
    lines[5] = lines[5].replace('"hash":"', '"hash":"0')
    path.write_text("\n".join(lines) + "\n")
    swapped, other = step_batch(ledgers.dir, 3, tokens), step_batch(ledgers.dir, 5, tokens)
    assert (swapped.in_order, swapped.in_shards) == (False, True)
    assert (other.in_order, other.in_shards) == (True, False)


def test_a_step_in_flight_is_not_reached(ledgers: Ledgers) -> None:
    ledgers.attempt(1, start=0, stop=7)
    path = ledgers.dir.ledger / "attempt-0001-rank-0001.jsonl"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(UserError, match="has not reached step 7; its last is step 6") as error:
        stretch_of(ledgers.dir, stretches_of(ledgers.dir), 7)
    assert error.value.remedy == "Give a step from 1 to 6"


def test_a_run_without_a_ledger_has_no_steps(ledgers: Ledgers) -> None:
    for _ in range(2):
        with pytest.raises(UserError, match="has not trained a step yet"):
            stretch_of(ledgers.dir, stretches_of(ledgers.dir), 1)
        ledgers.attempt(1, start=0, stop=0)


def test_a_step_missing_for_a_rank_is_refused(ledgers: Ledgers, tokens: TokenSet) -> None:
    ledgers.attempt(1, start=0, stop=7)
    path = ledgers.dir.ledger / "attempt-0001-rank-0001.jsonl"
    path.write_text("".join(text for text in path.read_text().splitlines(keepends=True) if '"step":3' not in text))
    with pytest.raises(UserError, match="has step 3 for only 1 of 2 ranks") as error:
        step_batch(ledgers.dir, 3, tokens)
    assert "stoker audit" in error.value.remedy


@pytest.mark.parametrize("sample", [10**6, -1, 2**62])
def test_a_step_with_a_sample_that_does_not_exist_is_refused(ledgers: Ledgers, tokens: TokenSet, sample: int) -> None:
    ledgers.attempt(1, start=0, stop=3, world=1)
    path = ledgers.dir.ledger / "attempt-0001-rank-0000.jsonl"
    path.write_text(re.sub(r'("step":2,"samples":\[)\d+', rf"\g<1>{sample}", path.read_text()))
    with pytest.raises(UserError, match="is damaged at step 2: sample ids go from") as error:
        step_batch(ledgers.dir, 2, tokens)
    assert "stoker audit" in error.value.remedy


def test_a_missing_or_different_token_set_is_refused(ledgers: Ledgers, tmp_path: Path, tokens: TokenSet) -> None:
    assert token_set(ledgers.dir).key == tokens.key
    ledgers.dir.create(ledgers.dir.spec(), DataRef(shards=str(tokens.path), key="another"))
    with pytest.raises(UserError, match="holds other data than the run was trained on"):
        token_set(ledgers.dir)
    ledgers.dir.create(ledgers.dir.spec(), DataRef(shards=str(tmp_path / "none"), key=tokens.key))
    with pytest.raises(UserError, match=r"token set .*none is missing"):
        token_set(ledgers.dir)


def test_the_documents_of_a_step_contain_its_tokens(ledgers: Ledgers, tokens: TokenSet) -> None:
    ledgers.attempt(1, start=0, stop=3, world=3)
    views = documents(ledgers.dir, step_batch(ledgers.dir, 2, tokens), tokens)
    assert [view.rank for view in views] == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    text = (tokens.path.parent / "a.txt").read_bytes()
    for view in views:
        assert sum(passage.tokens for passage in view.documents) == LENGTH + 1
        for passage in view.documents:
            assert passage.place is not None
            assert text[passage.place :].startswith(passage.text.encode())
    assert len(documents(ledgers.dir, step_batch(ledgers.dir, 2, tokens), tokens, most=2)) == 2
