import json
from pathlib import Path

import numpy as np
import pytest

from stoker.data.ledger import Ledger
from stoker.data.order import Shuffled, batch
from stoker.data.prepare import prepare
from stoker.data.shards import TokenSet
from stoker.observe.audit import audit
from stoker.rundir import DataRef, Exit, RunDir
from stoker.spec.data import Data, TrainTokenizer
from stoker.spec.derive import share
from stoker.spec.model import Model
from stoker.spec.run import Batch, RunSpec, Until

LENGTH, SEQUENCES = 16, 10


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit")
    text = "".join(f"line {i} of the text that the run is trained on\n" for i in range(200))
    (folder / "a.txt").write_text(text)
    data = Data(path=str(folder / "a.txt"), tokenizer=TrainTokenizer(train=270))
    return prepare(data, folder / "tokens").path


class FakeRun:
    """A run directory with the ledgers of a trainer that did what it should, and nothing else."""

    def __init__(self, folder: Path, tokens: TokenSet, **until: int) -> None:
        self.tokens = tokens
        self.samples = tokens.train.samples(LENGTH)
        self.positions = until["epochs"] * self.samples if "epochs" in until else None
        self.dir = RunDir(folder)
        spec = RunSpec(
            data=Data(path="."),
            model=Model(layers=1, heads=1, width=8, context=LENGTH),
            batch=Batch(sequences=SEQUENCES, length=LENGTH),
            until=Until(**until),
        )
        self.dir.create(spec, DataRef(shards=str(tokens.path), key=tokens.key))

    def attempt(self, number: int, *, start: int, stop: int, world: int = 2, swap: int | None = None) -> None:
        """Steps start+1..stop. At step `swap` the first two rows change places after their ids were noted."""
        for rank in range(world):
            with Ledger(self.dir.ledger, attempt=number, rank=rank, world=world, start=start) as ledger:
                for step in range(start + 1, stop + 1):
                    order = Shuffled(1, self.samples)
                    ids = batch(order, sequences=SEQUENCES, step=step, positions=self.positions).ids
                    part = share(len(ids), rank=rank, world=world)
                    mine = ids[part.start : part.stop]
                    rows = self.tokens.train.read(mine, LENGTH)
                    if step == swap:
                        rows[[0, 1]] = rows[[1, 0]]
                    ledger.record(step, mine, rows)

    def done(self, step: int) -> None:
        self.dir.write_exit(Exit(state="done", code=0, step=step, reason="done"))

    def edit(self, attempt: int, rank: int, step: int, change) -> None:
        """Change the ledger's record of a step after the fact; None takes it out."""
        path = self.dir.ledger / f"attempt-{attempt:04d}-rank-{rank:04d}.jsonl"
        lines = []
        for line in path.read_text().splitlines():
            record = json.loads(line)
            lines.append(change(record) if record.get("step") == step else record)
        path.write_text("".join(json.dumps(record) + "\n" for record in lines if record is not None))


@pytest.fixture
def run(tmp_path: Path, made: Path) -> FakeRun:
    return FakeRun(tmp_path / "run", TokenSet.open(made), steps=600)


@pytest.fixture
def epoch_run(tmp_path: Path, made: Path) -> FakeRun:
    return FakeRun(tmp_path / "run", TokenSet.open(made), epochs=2)


def test_an_undisturbed_run_of_whole_epochs_passes(epoch_run: FakeRun) -> None:
    steps = -(-2 * epoch_run.samples // SEQUENCES)
    epoch_run.attempt(1, start=0, stop=steps)
    epoch_run.done(steps)
    result = audit(epoch_run.dir)
    assert result.ok, result.problems
    assert (result.steps, result.attempts, result.epochs, result.samples) == (steps, 1, 2, 2 * epoch_run.samples)
    assert (result.missing, result.duplicated, result.mismatched) == (0, 0, 0)


def test_what_a_killed_attempt_did_after_the_checkpoint_is_not_counted(run: FakeRun) -> None:
    run.attempt(1, start=0, stop=57)
    run.attempt(2, start=50, stop=50)
    run.attempt(3, start=50, stop=71)
    run.attempt(4, start=40, stop=90)  # the newest checkpoint was damaged
    run.attempt(5, start=90, stop=600)
    run.done(600)
    result = audit(run.dir)
    assert result.ok, result.problems
    assert (result.steps, result.attempts, result.samples) == (600, 5, 6000)
    assert result.epochs == 6000 // run.samples > 1


def test_the_number_of_workers_may_change(run: FakeRun) -> None:
    for number, world in enumerate((1, 2, 3, 4, 1, 12)):
        run.attempt(number + 1, start=100 * number, stop=100 * number + 110, world=world)
    assert audit(run.dir).ok


def test_a_step_in_flight_when_the_run_was_killed_is_no_fault(run: FakeRun) -> None:
    run.attempt(1, start=0, stop=30, world=3)
    run.edit(1, 2, 30, lambda _: None)
    result = audit(run.dir)
    assert result.ok, result.problems
    assert result.steps == 29
    run.done(30)
    assert not audit(run.dir).ok


def test_one_swapped_sample_fails(run: FakeRun) -> None:
    run.attempt(1, start=0, stop=600)
    clean = audit(run.dir)
    run.edit(1, 1, 7, lambda r: r | {"samples": [(r["samples"][0] + 1) % run.samples, *r["samples"][1:]]})
    result = audit(run.dir)
    assert clean.ok
    assert not result.ok
    assert (result.missing, result.duplicated, result.mismatched) == (1, 1, 1)
    assert "epoch 1: 1 samples were never used" in " ".join(result.problems)


def test_one_sample_used_twice_with_its_true_tokens_fails(run: FakeRun) -> None:
    run.attempt(1, start=0, stop=3, world=1)
    first = batch(Shuffled(1, run.samples), sequences=SEQUENCES, step=1).ids
    with Ledger(run.dir.ledger, attempt=2, rank=0, world=1, start=3) as ledger:
        ledger.record(4, first, run.tokens.train.read(first, LENGTH))
    result = audit(run.dir)
    assert (result.ok, result.duplicated, result.mismatched) == (False, SEQUENCES, 0)
    assert "step 4: 10 of its samples were used before in the same epoch" in result.problems


def test_two_rows_that_changed_places_fail(run: FakeRun) -> None:
    run.attempt(1, start=0, stop=20, swap=13, world=1)
    result = audit(run.dir)
    assert (result.ok, result.mismatched, result.duplicated) == (False, 1, 0)
    assert "step 13, rank 0" in result.problems[0]


def test_one_changed_token_in_a_shard_fails(tmp_path: Path, made: Path) -> None:
    copy = tmp_path / "tokens"
    copy.mkdir()
    for path in made.iterdir():
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    run = FakeRun(tmp_path / "run", TokenSet.open(copy), epochs=1)
    steps = -(-run.samples // SEQUENCES)
    run.attempt(1, start=0, stop=steps)
    assert audit(run.dir).ok
    tokens = np.fromfile(copy / "train-00000.bin", "<u2")
    tokens[40] ^= 1
    tokens.tofile(copy / "train-00000.bin")
    result = audit(run.dir)
    assert (result.ok, result.mismatched) == (False, 1)
    assert "train-00000.bin is damaged" in result.problems[0]


def test_a_missing_rank_fails(run: FakeRun) -> None:
    run.attempt(1, start=0, stop=20, world=3)
    (run.dir.ledger / "attempt-0001-rank-0001.jsonl").unlink()
    result = audit(run.dir)
    assert not result.ok
    assert "attempt 1, step 1: no record of rank 1 of 3" in result.problems


def test_a_missing_step_fails(run: FakeRun) -> None:
    run.attempt(1, start=0, stop=20)
    for rank in range(2):
        run.edit(1, rank, 9, lambda _: None)
    assert not audit(run.dir).ok


def test_an_attempt_that_starts_beyond_what_was_done_fails(run: FakeRun) -> None:
    run.attempt(1, start=0, stop=20)
    run.attempt(2, start=25, stop=30)
    assert not audit(run.dir).ok


def test_a_run_that_says_it_is_done_too_early_fails(epoch_run: FakeRun) -> None:
    steps = -(-2 * epoch_run.samples // SEQUENCES)
    epoch_run.attempt(1, start=0, stop=steps - 1)
    assert audit(epoch_run.dir).ok
    epoch_run.done(steps)
    result = audit(epoch_run.dir)
    assert (result.ok, result.missing) == (False, 2 * epoch_run.samples - (steps - 1) * SEQUENCES)


def test_other_data_in_the_place_of_the_runs_data_fails(run: FakeRun) -> None:
    run.attempt(1, start=0, stop=5)
    path = run.dir.path / "data.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"key": "other"}))
    assert "holds other data" in audit(run.dir).problems[0]


def test_a_step_of_another_size_than_the_batch_fails(run: FakeRun) -> None:
    ids = np.concatenate([batch(Shuffled(1, run.samples), sequences=SEQUENCES, step=step).ids for step in (1, 2, 3)])
    with Ledger(run.dir.ledger, attempt=1, rank=0, world=1, start=0) as ledger:
        for step, (start, stop) in enumerate([(0, 10), (10, 19), (19, 30)], start=1):
            ledger.record(step, ids[start:stop], run.tokens.train.read(ids[start:stop], LENGTH))
    assert audit(run.dir).problems == [
        "step 2 used 9 samples instead of 10",
        "step 3 used 11 samples instead of 10",
    ]


def test_a_ledger_that_ends_before_its_run_did_fails(run: FakeRun) -> None:
    run.attempt(1, start=0, stop=4)
    run.done(5)
    assert audit(run.dir).problems == ["the run ended at step 5, and the ledger at step 4"]
