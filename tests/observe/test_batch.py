from pathlib import Path

import numpy as np
import pytest

from stoker.data import order
from stoker.data.ledger import Ledger
from stoker.data.prepare import prepare
from stoker.data.shards import TokenSet
from stoker.observe.batch import batch, documents, line, reached, token_set
from stoker.rundir import DataRef, RunDir
from stoker.spec.data import Data, TrainTokenizer
from stoker.spec.derive import share
from stoker.spec.errors import UserError
from stoker.spec.model import Model
from stoker.spec.run import Batch, RunSpec, Until

LENGTH, SEQUENCES, SEED = 16, 10, 3


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> TokenSet:
    folder = tmp_path_factory.mktemp("batch")
    text = "".join(f"line {i} of the text that the run is trained on\n" for i in range(200))
    (folder / "a.txt").write_text(text)
    return prepare(Data(path=str(folder / "a.txt"), tokenizer=TrainTokenizer(train=270)), folder / "tokens")


class Ledgers:
    """A run directory with the ledgers of a trainer that did what it should, and nothing else."""

    def __init__(self, folder: Path, tokens: TokenSet) -> None:
        self.tokens, self.samples = tokens, tokens.train.samples(LENGTH)
        self.dir = RunDir(folder)
        spec = RunSpec(
            data=Data(path="."),
            model=Model(layers=1, heads=1, width=8, context=LENGTH),
            batch=Batch(sequences=SEQUENCES, length=LENGTH),
            until=Until(steps=600),
            seed=SEED,
        )
        self.dir.create(spec, DataRef(shards=str(tokens.path), key=tokens.key))

    def attempt(
        self, number: int, *, start: int, stop: int, world: int = 2, drawn: int | None = None, epochs: int | None = None
    ) -> None:
        """Steps start+1..stop, after `drawn` samples; with `epochs` the last one may be short."""
        since = (start, start * SEQUENCES if drawn is None else drawn)
        positions = epochs * self.samples if epochs else None
        for rank in range(world):
            with Ledger(self.dir.ledger, attempt=number, rank=rank, world=world, start=start) as ledger:
                for step in range(start + 1, stop + 1):
                    ids = order.batch(
                        order.Shuffled(SEED, self.samples),
                        sequences=SEQUENCES,
                        step=step,
                        positions=positions,
                        since=since,
                    ).ids
                    part = share(len(ids), rank=rank, world=world)
                    mine = ids[part.start : part.stop]
                    ledger.record(step, mine, self.tokens.train.read(mine, LENGTH))


@pytest.fixture
def run(tmp_path: Path, made: TokenSet) -> Ledgers:
    return Ledgers(tmp_path / "run", made)


def test_a_step_is_that_of_the_attempt_that_survived(run: Ledgers, made: TokenSet) -> None:
    run.attempt(1, start=0, stop=57, world=2)
    run.attempt(2, start=50, stop=50, world=3)
    run.attempt(3, start=50, stop=71, world=4)
    run.attempt(4, start=40, stop=90, world=1)
    assert [(s.ledger.attempt, s.start, s.stop, s.drawn) for s in line(run.dir)] == [(1, 0, 40, 0), (4, 40, 90, 400)]
    for step, attempt, world in ((1, 1, 2), (40, 1, 2), (41, 4, 1), (90, 4, 1)):
        found = batch(run.dir, step, made)
        assert (found.attempt, found.world, len(found.ranks)) == (attempt, world, world)
        assert (found.in_order, found.in_shards) == (True, True)
        assert (
            np.concatenate(found.ranks).tolist()
            == order.batch(order.Shuffled(SEED, run.samples), sequences=SEQUENCES, step=step).ids.tolist()
        )


def test_what_follows_a_short_step_is_in_order_too(run: Ledgers, made: TokenSet) -> None:
    last = -(-run.samples // SEQUENCES)
    assert run.samples % SEQUENCES
    run.attempt(1, start=0, stop=last, epochs=1)
    run.attempt(2, start=last, stop=last + 20, drawn=run.samples, epochs=2)
    short = batch(run.dir, last, made)
    assert sum(map(len, short.ranks)) == run.samples % SEQUENCES
    assert short.in_order
    assert [s.drawn for s in line(run.dir)] == [0, run.samples]
    assert batch(run.dir, last + 7, made).in_order


def test_samples_out_of_order_and_other_tokens_are_seen(run: Ledgers, made: TokenSet) -> None:
    run.attempt(1, start=0, stop=5)
    path = run.dir.ledger / "attempt-0001-rank-0000.jsonl"
    lines = path.read_text().splitlines()
    lines[3] = lines[4].replace('"step":4', '"step":3')
    lines[5] = lines[5].replace('"hash":"', '"hash":"0')
    path.write_text("\n".join(lines) + "\n")
    swapped, other = batch(run.dir, 3, made), batch(run.dir, 5, made)
    assert (swapped.in_order, swapped.in_shards) == (False, True)
    assert (other.in_order, other.in_shards) == (True, False)


def test_a_step_in_flight_is_not_reached(run: Ledgers) -> None:
    run.attempt(1, start=0, stop=7)
    path = run.dir.ledger / "attempt-0001-rank-0001.jsonl"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(UserError, match="has not reached step 7; its last is step 6") as error:
        reached(run.dir, line(run.dir), 7)
    assert error.value.remedy == "Give a step from 1 to 6"


def test_a_run_without_a_ledger_has_no_steps(run: Ledgers) -> None:
    for _ in range(2):
        with pytest.raises(UserError, match="has not trained a step yet"):
            reached(run.dir, line(run.dir), 1)
        run.attempt(1, start=0, stop=0)


def test_a_step_that_a_rank_has_lost_is_named(run: Ledgers, made: TokenSet) -> None:
    run.attempt(1, start=0, stop=7)
    path = run.dir.ledger / "attempt-0001-rank-0001.jsonl"
    path.write_text("".join(text for text in path.read_text().splitlines(keepends=True) if '"step":3' not in text))
    with pytest.raises(UserError, match="has step 3 of 1 ranks only, and there were 2") as error:
        batch(run.dir, 3, made)
    assert "stoker audit" in error.value.remedy


def test_a_token_set_that_is_gone_or_another_is_refused(run: Ledgers, tmp_path: Path, made: TokenSet) -> None:
    assert token_set(run.dir).key == made.key
    run.dir.create(run.dir.spec(), DataRef(shards=str(made.path), key="another"))
    with pytest.raises(UserError, match="holds other data than the run was trained on"):
        token_set(run.dir)
    run.dir.create(run.dir.spec(), DataRef(shards=str(tmp_path / "none"), key=made.key))
    with pytest.raises(UserError, match=r"token set .*none is gone"):
        token_set(run.dir)


def test_the_documents_of_a_step_hold_what_the_model_was_given(run: Ledgers, made: TokenSet) -> None:
    run.attempt(1, start=0, stop=3, world=3)
    found = documents(run.dir, batch(run.dir, 2, made), made)
    assert [view.rank for view in found] == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    text = (made.path.parent / "a.txt").read_bytes()
    for view in found:
        assert sum(passage.tokens for passage in view.documents) == LENGTH + 1
        for passage in view.documents:
            assert passage.place is not None
            assert text[passage.place :].startswith(passage.text.encode())
    assert len(documents(run.dir, batch(run.dir, 2, made), made, most=2)) == 2
