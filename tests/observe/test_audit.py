import json
import os
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from stoker.backends.kubernetes.place import ClusterPlace
from stoker.data.ledger import Ledger, Mark, combined
from stoker.data.order import Shuffled, batch
from stoker.data.prepare import prepare
from stoker.data.shards import TokenSet
from stoker.observe.audit import audit
from stoker.rundir import DataRef, Exit, RunDir, events
from stoker.rundir.checkpoint import sealed
from stoker.spec.data import Data, TrainTokenizer
from stoker.spec.derive import share
from stoker.spec.model import Model
from stoker.spec.run import Batch, RunSpec, Until

LENGTH, SEQUENCES = 16, 10


@pytest.fixture(scope="module")
def token_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit")
    text = "".join(f"line {i} of the text that the run is trained on\n" for i in range(200))
    (folder / "a.txt").write_text(text)
    data = Data(path=str(folder / "a.txt"), tokenizer=TrainTokenizer(train=270))
    return prepare(data, folder / "tokens").path


class FakeRun:
    """A run directory with correct records."""

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

    def attempt(
        self,
        number: int,
        *,
        start: int,
        stop: int,
        world: int = 2,
        swap: int | None = None,
        saves: tuple[int, ...] = (),
    ) -> None:
        """Steps start+1..stop. At step `swap` the first two rows are swapped after their ids were recorded."""
        self.dir.add_event(events.Started(attempt=number, step=start, world=world, chip="CPU", parameters=8), rank=0)
        marks: dict[int, list[Mark]] = {step: [] for step in saves}
        for rank in range(world):
            with Ledger(self.dir.ledger, attempt=number, rank=rank, world=world, start=start) as ledger:
                for step in range(start + 1, stop + 1):
                    order = Shuffled(1, self.samples)
                    ids = batch(order, sequences=SEQUENCES, step=step, positions=self.positions).ids
                    part = share(len(ids), rank=rank, world=world)
                    rank_ids = ids[part.start : part.stop]
                    rows = self.tokens.train.read(rank_ids, LENGTH)
                    if step == swap:
                        rows[[0, 1]] = rows[[1, 0]]
                    ledger.record(step, rank_ids, rows)
                    if step in marks:
                        marks[step].append(ledger.mark())
        for step in range(start + 1, stop + 1):
            self.dir.add_metrics({"step": step, "time": time.time(), "loss": 1.0})
        before = self.manifest(start).get("ledger", {}) if self.dir.checkpoint(start).exists() else {}
        for step in saves:
            self.save(step, before | {f"attempt-{number:04d}": asdict(combined(marks[step]))})

    def save(self, step: int, ledger: dict | None) -> None:
        drawn = min(step * SEQUENCES, self.positions or step * SEQUENCES)
        manifest = {"step": step, "state": {"progress": {"step": step, "drawn": drawn}}, "files": {}}
        self.dir.checkpoint(step).mkdir(parents=True, exist_ok=True)
        written = manifest if ledger is None else manifest | {"ledger": ledger}
        self.write(step, written)

    def write(self, step: int, manifest: dict) -> None:
        manifest.pop("seal", None)
        (self.dir.checkpoint(step) / "manifest.json").write_text(json.dumps(sealed(manifest, {})))

    def manifest(self, step: int) -> dict:
        return json.loads((self.dir.checkpoint(step) / "manifest.json").read_text())

    def cut(self, attempt: int, rank: int, after: int) -> None:
        """Delete the records of a ledger after a step."""
        path = self.dir.ledger / f"attempt-{attempt:04d}-rank-{rank:04d}.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if json.loads(line).get("step", 0) <= after))

    def done(self, step: int) -> None:
        self.dir.write_exit(Exit(state="done", code=0, step=step, reason="done"))

    def edit(self, attempt: int, rank: int, step: int, change) -> None:
        """Change the ledger's record of a step; None deletes it."""
        path = self.dir.ledger / f"attempt-{attempt:04d}-rank-{rank:04d}.jsonl"
        lines = []
        for line in path.read_text().splitlines():
            record = json.loads(line)
            lines.append(change(record) if record.get("step") == step else record)
        path.write_text("".join(json.dumps(record) + "\n" for record in lines if record is not None))


@pytest.fixture
def run(tmp_path: Path, token_path: Path) -> FakeRun:
    return FakeRun(tmp_path / "run", TokenSet.open(token_path), steps=600)


@pytest.fixture
def epoch_run(tmp_path: Path, token_path: Path) -> FakeRun:
    return FakeRun(tmp_path / "run", TokenSet.open(token_path), epochs=2)


def test_an_undisturbed_run_of_whole_epochs_passes(epoch_run: FakeRun) -> None:
    steps = -(-2 * epoch_run.samples // SEQUENCES)
    epoch_run.attempt(1, start=0, stop=steps)
    epoch_run.done(steps)
    result = audit(epoch_run.dir)
    assert result.ok, result.problems
    assert (result.steps, result.attempts, result.epochs, result.samples) == (steps, 1, 2, 2 * epoch_run.samples)
    assert (result.missing, result.duplicated, result.mismatched) == (0, 0, 0)


def test_steps_of_a_killed_attempt_after_the_checkpoint_are_not_counted(run: FakeRun) -> None:
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


def test_a_step_in_flight_when_the_run_was_killed_is_no_problem(run: FakeRun) -> None:
    run.attempt(1, start=0, stop=30, world=3)
    run.edit(1, 2, 30, lambda _: None)
    log = run.dir.path / "metrics.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))
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
    run.dir.add_metrics({"step": 4, "loss": 1.0})
    first = batch(Shuffled(1, run.samples), sequences=SEQUENCES, step=1).ids
    with Ledger(run.dir.ledger, attempt=2, rank=0, world=1, start=3) as ledger:
        ledger.record(4, first, run.tokens.train.read(first, LENGTH))
    result = audit(run.dir)
    assert (result.ok, result.duplicated, result.mismatched) == (False, SEQUENCES, 0)
    assert "step 4: 10 of its samples were used before in the same epoch" in result.problems


def test_two_swapped_rows_fail(run: FakeRun) -> None:
    run.attempt(1, start=0, stop=20, swap=13, world=1)
    result = audit(run.dir)
    assert (result.ok, result.mismatched, result.duplicated) == (False, 1, 0)
    assert "step 13, rank 0" in result.problems[0]


def test_one_changed_token_in_a_shard_fails(tmp_path: Path, token_path: Path) -> None:
    copy = tmp_path / "tokens"
    copy.mkdir()
    for path in token_path.iterdir():
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


def test_a_run_that_is_done_too_early_fails(epoch_run: FakeRun) -> None:
    steps = -(-2 * epoch_run.samples // SEQUENCES)
    epoch_run.attempt(1, start=0, stop=steps - 1)
    assert audit(epoch_run.dir).ok
    epoch_run.done(steps)
    result = audit(epoch_run.dir)
    assert (result.ok, result.missing) == (False, 2 * epoch_run.samples - (steps - 1) * SEQUENCES)


def test_other_data_than_the_runs_own_fails(run: FakeRun) -> None:
    run.attempt(1, start=0, stop=5)
    path = run.dir.path / "data.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"key": "other"}))
    assert "holds other data" in audit(run.dir).problems[0]


def test_a_step_of_another_size_than_the_batch_fails(run: FakeRun) -> None:
    ids = np.concatenate([batch(Shuffled(1, run.samples), sequences=SEQUENCES, step=step).ids for step in (1, 2, 3)])
    with Ledger(run.dir.ledger, attempt=1, rank=0, world=1, start=0) as ledger:
        for step, (start, stop) in enumerate([(0, 10), (10, 19), (19, 30)], start=1):
            ledger.record(step, ids[start:stop], run.tokens.train.read(ids[start:stop], LENGTH))
    run.dir.add_metrics({"step": 3, "loss": 1.0})
    assert audit(run.dir).problems == [
        "step 2 used 9 samples instead of 10",
        "step 3 used 11 samples instead of 10",
    ]


def test_a_ledger_that_ends_before_its_run_did_fails(run: FakeRun) -> None:
    run.attempt(1, start=0, stop=4)
    run.done(5)
    assert audit(run.dir).problems == ["the run ended at step 5, and the ledger at step 4"]


def test_a_run_without_a_step_proves_nothing(run: FakeRun) -> None:
    assert audit(run.dir).problems == ["no step was trained, so there is nothing to prove"]
    run.attempt(1, start=0, stop=0)
    assert not audit(run.dir).ok


def test_a_ledger_truncated_after_a_kill_contradicts_the_metrics(run: FakeRun) -> None:
    run.attempt(1, start=0, stop=30)
    assert audit(run.dir).ok
    for rank in range(2):
        run.cut(1, rank, after=20)
    assert audit(run.dir).problems == [
        "metrics.jsonl has step 30, and the ledger ends at step 20",
        "metrics.jsonl has step 30, and the ledger of attempt 1 ends at step 20",
    ]


def test_a_ledger_truncated_with_the_metrics_contradicts_the_events(run: FakeRun) -> None:
    run.attempt(1, start=0, stop=30)
    run.dir.add_event(events.CheckpointSaved(step=30, seconds=1.0), rank=0)
    for rank in range(2):
        run.cut(1, rank, after=20)
    log = run.dir.path / "metrics.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:20]))
    assert audit(run.dir).problems == ["events.jsonl has step 30, and the ledger of attempt 1 ends at step 20"]


def test_a_ledger_without_metrics_is_no_proof(run: FakeRun) -> None:
    run.attempt(1, start=0, stop=30)
    (run.dir.path / "metrics.jsonl").unlink()
    assert audit(run.dir).problems == ["metrics.jsonl has no record of any step"]


def test_metrics_of_a_killed_attempt_after_the_checkpoint_are_no_problem(run: FakeRun) -> None:
    run.attempt(1, start=0, stop=57, saves=(50,))
    run.attempt(2, start=50, stop=52)
    result = audit(run.dir)
    assert result.ok, result.problems
    assert result.steps == 52


def test_an_attempt_killed_before_its_started_event_is_no_problem(run: FakeRun) -> None:
    run.attempt(1, start=0, stop=57, saves=(50,))
    Ledger(run.dir.ledger, attempt=2, rank=0, world=1, start=50).close()
    result = audit(run.dir)
    assert result.ok, result.problems
    assert result.steps == 50


@pytest.mark.parametrize("step", [3, 700])
def test_an_exit_at_another_step_than_the_end_of_the_ledger_fails(run: FakeRun, step: int) -> None:
    run.attempt(1, start=0, stop=20, saves=(20,))
    run.done(20)
    assert audit(run.dir).ok
    run.done(step)
    assert audit(run.dir).problems == [f"the run ended at step {step}, and the ledger at step 20"]


@pytest.mark.parametrize("text", ["{", '{"state": "done", "code": 0, "step": "20", "reason": ""}', "[]"])
def test_a_damaged_exit_fails(run: FakeRun, text: str) -> None:
    run.attempt(1, start=0, stop=20)
    (run.dir.path / "exit.json").write_text(text)
    assert audit(run.dir).problems == ["exit.json is damaged"]


def test_a_run_that_was_stopped_before_it_could_save_names_its_checkpoint(run: FakeRun) -> None:
    run.attempt(1, start=0, stop=57, saves=(50,))
    run.dir.write_exit(Exit(state="paused", code=75, step=50, reason="stopped before the workers could save"))
    assert audit(run.dir).ok
    run.dir.write_exit(Exit(state="paused", code=75, step=40, reason="stopped before the workers could save"))
    assert not audit(run.dir).ok


def test_a_checkpoint_beyond_the_ledger_fails(run: FakeRun) -> None:
    run.attempt(1, start=0, stop=20, saves=(20,))
    run.save(25, None)
    assert audit(run.dir).problems == ["the newest checkpoint is of step 25, and the ledger ends at step 20"]


def test_a_checkpoint_that_was_trained_on_other_samples_fails(run: FakeRun) -> None:
    run.attempt(1, start=0, stop=20)
    run.save(20, None)
    manifest = run.manifest(20)
    manifest["state"]["progress"]["drawn"] += SEQUENCES
    run.write(20, manifest)
    assert audit(run.dir).problems == ["the checkpoint of step 20 was trained on 210 samples, and the ledger has 200"]


@pytest.mark.parametrize("attempt", [1, 2, 4])
def test_a_ledger_changed_after_a_save_contradicts_the_checkpoint(run: FakeRun, attempt: int) -> None:
    run.attempt(1, start=0, stop=57, saves=(40, 50))
    run.attempt(2, start=50, stop=60, world=3, saves=(60,))
    run.attempt(3, start=60, stop=60)  # killed before its first step
    run.attempt(4, start=60, stop=90, saves=(80,))
    assert audit(run.dir).ok, audit(run.dir).problems
    path = run.dir.ledger / f"attempt-{attempt:04d}-rank-0001.jsonl"
    path.write_text(path.read_text().replace('"samples":', '"samples": ', 1))  # changes only its bytes
    assert audit(run.dir).problems == [
        f"the ledger of attempt {attempt} is not the one that the checkpoint of step 80 was saved with"
    ]


def test_steps_after_the_newest_save_are_not_compared_with_it(run: FakeRun) -> None:
    run.attempt(1, start=0, stop=57, saves=(50,))
    assert audit(run.dir).ok
    assert audit(run.dir).unchecked == []


def test_an_older_run_is_audited_and_missing_checks_are_listed(run: FakeRun) -> None:
    run.attempt(1, start=0, stop=20)
    assert audit(run.dir).unchecked == ["there is no checkpoint to compare the ledger with"]
    run.save(20, None)
    result = audit(run.dir)
    assert result.ok
    assert result.unchecked == [
        "the checkpoint of step 20 holds no digest of the ledger: an older version of Stoker wrote it"
    ]
    run.attempt(2, start=20, stop=30, saves=(30,))
    result = audit(run.dir)
    assert result.ok, result.problems
    assert result.unchecked == ["attempts up to 1 have no digest in a checkpoint"]


def test_a_missing_ledger_between_two_others_is_reported(run: FakeRun) -> None:
    run.attempt(1, start=0, stop=5)
    run.attempt(2, start=0, stop=20, saves=(20,))
    run.attempt(3, start=20, stop=30, saves=(30,))
    assert audit(run.dir).ok, audit(run.dir).problems
    for rank in range(2):
        (run.dir.ledger / f"attempt-0002-rank-{rank:04d}.jsonl").unlink()
    problem = "the ledger of attempt 2 is missing: the checkpoint of step 30 was saved with it"
    assert problem in audit(run.dir).problems


@pytest.mark.parametrize("ledger", [[], {"attempt-1": 3}, {"x": {"bytes": 1, "sha256": "y"}}, "text"])
def test_damaged_digests_fail(run: FakeRun, ledger: object) -> None:
    run.attempt(1, start=0, stop=20)
    run.save(20, {})
    manifest = run.manifest(20) | {"ledger": ledger}
    run.write(20, manifest)
    (problem,) = audit(run.dir).problems
    assert problem.startswith("the manifest of the newest checkpoint is damaged: step-000000020: is not a manifest: ")


def test_a_run_in_a_cluster_is_not_proven_by_its_local_folder(run: FakeRun) -> None:
    ClusterPlace(kind="kubernetes", context=None, namespace="lab", job="job", run="run", volume="v", image="i").write(
        run.dir
    )
    (problem,) = audit(run.dir).problems
    assert problem.startswith("the ledger of run 'run' is in the cluster; copy it first with: stoker cp ")
    assert problem.endswith(": ./run-copy")


@pytest.mark.parametrize(
    "line",
    [
        "3",
        "[" * 100_000,
        '{"step": "21", "samples": [], "hash": ""}',
        '{"step": 21, "samples": {"a": 1}, "hash": ""}',
        '{"step": 21, "samples": [1, 2.5], "hash": ""}',
        '{"step": 21, "samples": [99999999999999999999], "hash": ""}',
        '{"step": 21, "samples": [[1], 2], "hash": ""}',
        '{"step": 21, "samples": [1]}',
        '{"step": ' + "9" * 5000 + "}",
    ],
    ids=range(9),
)
def test_an_unreadable_line_of_the_ledger_is_counted_and_fails(run: FakeRun, line: str) -> None:
    run.attempt(1, start=0, stop=20)
    with (run.dir.ledger / "attempt-0001-rank-0001.jsonl").open("a") as file:
        file.write(line + "\n")
    result = audit(run.dir)
    assert (result.skipped, result.ok, result.steps) == (1, False, 20)
    assert "a line of the ledger cannot be read" in result.problems[0]


def test_a_header_with_a_huge_world_size_takes_no_time(run: FakeRun) -> None:
    path = run.dir.ledger / "attempt-0001-rank-0000.jsonl"
    path.write_text('{"attempt":1,"rank":0,"world":1000000,"start":0}\n')
    assert not audit(run.dir).ok
    path.write_text('{"attempt":1,"rank":0,"world":100000000,"start":0}\n')
    assert "attempt-0001-rank-0000.jsonl has no header" in audit(run.dir).problems[0]


def test_a_fifo_instead_of_a_ledger_fails(run: FakeRun) -> None:
    run.attempt(1, start=0, stop=20)
    path = run.dir.ledger / "attempt-0001-rank-0001.jsonl"
    path.unlink()
    os.mkfifo(path)
    assert audit(run.dir).problems == [f"{path} is not a regular file"]
