"""The run directory copes with a run that is live, was killed at any moment, or was copied."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stoker.rundir import RunDir
from stoker.spec.errors import UserError


def test_attempts_are_counted_up_from_the_highest_that_wrote_a_ledger(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert run.next_attempt() == 1
    run.ledger.mkdir()
    for name in ("attempt-0002-rank-0000.jsonl", "attempt-0012-rank-0003.jsonl", "attempt-x-rank-0.jsonl"):
        (run.ledger / name).touch()
    assert run.next_attempt() == 13


def test_a_line_torn_by_a_kill_is_skipped_and_the_next_is_complete(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.add_metrics({"step": 1, "loss": 2.0})
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write('{"step": 2, "lo')
    run.add_metrics({"step": 2, "loss": 1.0})
    assert [(record["step"], record["loss"]) for record in run.metrics()] == [(1, 2.0), (2, 1.0)]


def test_of_a_step_that_was_trained_again_the_last_line_counts(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for step, loss in ((1, 3.0), (2, 2.0), (2, 2.5), (3, 1.0)):
        run.add_metrics({"step": step, "loss": loss})
    assert [record["loss"] for record in run.metrics()] == [3.0, 2.5, 1.0]


def test_numbers_are_read_back_exactly_and_nan_and_infinity_become_null(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.add_metrics({"step": 1, "loss": 0.1 + 0.2, "grad_norm": math.nan, "attention": [[math.inf, -1e-300]]})
    line = (run.path / "metrics.jsonl").read_text()
    record = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert record == {"step": 1, "loss": 0.1 + 0.2, "grad_norm": None, "attention": [[None, -1e-300]]}


def test_only_one_process_may_write_a_run_and_the_error_names_it(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert run.holder() is None
    with run.lock():
        holder = run.holder()
        assert holder is not None
        with pytest.raises(UserError, match=f"process {holder['pid']}"), RunDir(tmp_path).lock():
            pass
    assert run.holder() is None


def test_a_process_that_has_not_written_its_name_to_the_lock_yet_is_another_process(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    with run.lock():
        (run.path / "lock").write_text("")
        with pytest.raises(UserError, match="is being written by another process"), RunDir(tmp_path).lock():
            pass


def test_a_copy_of_a_checkpoint_under_another_name_does_not_count(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for path in (run.checkpoint(20), run.checkpoints / "step-20", run.checkpoints / "step-000000020-copy"):
        path.mkdir(parents=True)
        (path / "manifest.json").write_text('{"step": 20, "files": {}}')
    assert [saved.path for saved in run.saved()] == [run.checkpoint(20)]


def test_a_run_that_saves_and_prunes_always_has_a_checkpoint(tmp_path: Path) -> None:
    run = RunDir(tmp_path)

    def save(step: int) -> None:
        run.checkpoint(step).mkdir(parents=True)
        (run.checkpoint(step) / "manifest.json").write_text('{"step": 1, "files": {}}')

    def save_and_prune() -> None:
        for step in range(1, 1500):
            save(step)
            (run.checkpoint(step - 1) / "manifest.json").unlink()
            run.checkpoint(step - 1).rmdir()

    save(0)
    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(save_and_prune)
        while not writer.done():
            assert run.saved()
        writer.result()


@pytest.mark.parametrize("name", ["ledger", "logs", "checkpoints", "tb", "tokenizer", ".members"])
def test_a_run_with_a_folder_that_is_a_link_is_not_written(tmp_path: Path, name: str) -> None:
    run, outside = RunDir(tmp_path / "run"), tmp_path / "outside"
    run.path.mkdir()
    outside.mkdir()
    (run.path / name).symlink_to(outside)
    with pytest.raises(UserError, match="is a link"), run.lock():
        pass
    assert not list(outside.iterdir())


@pytest.mark.parametrize("name", ["ledger", "logs", "checkpoints", "tokenizer", ".members"])
def test_a_run_with_a_file_where_a_folder_should_be_is_refused_with_its_name(tmp_path: Path, name: str) -> None:
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    (run.path / name).write_text("x")
    with pytest.raises(UserError, match=f"{name} is a file where a folder should be"), run.lock():
        pass
