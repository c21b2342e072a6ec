import shutil
from pathlib import Path

import pytest

from stoker.api.opening import begin, free_name
from stoker.rundir import Exit, RunDir, write_json
from stoker.spec.errors import UserError
from stoker.spec.load import load
from stoker.spec.run import RunSpec
from tests.written import events_of

OVERRIDES = [
    "model={layers: 1, heads: 1, width: 16, context: 32}",
    "data.tokenizer.train=300",
    "batch={sequences: 4, length: 32}",
    "until.steps=10",
    "name=tale",
]


def spec(book: Path, *overrides: str) -> RunSpec:
    return load(None, [f"data={book}", *OVERRIDES, *overrides]).spec


def test_a_new_run_holds_its_spec_its_data_and_its_tokenizer(tmp_path: Path, book: Path) -> None:
    opened = begin(spec(book), runs=tmp_path / "runs")
    run = RunDir(tmp_path / "runs" / "tale")
    assert opened.run.path == run.path
    assert run.spec().model.vocab == opened.tokens.vocab
    assert run.data().key == opened.tokens.key
    assert (run.tokenizer / "tokenizer.json").is_file()
    assert opened.derived.steps == 10
    assert opened.done is None
    assert run.holder() is None


def test_the_same_spec_again_opens_the_same_run(tmp_path: Path, book: Path) -> None:
    first = begin(spec(book), runs=tmp_path)
    second = begin(spec(book), runs=tmp_path)
    assert second.run.path == first.run.path
    assert second.tokens.path == first.tokens.path
    assert events_of(second.run) == []


def test_allowed_changes_are_applied_and_recorded(tmp_path: Path, book: Path) -> None:
    begin(spec(book), runs=tmp_path)
    run = begin(spec(book, "until.steps=20", "on.workers=2"), runs=tmp_path).run
    assert (run.spec().until.steps, run.spec().on.workers) == (20, 2)
    (event,) = events_of(run)
    assert (event["kind"], event["changes"]) == ("changed", {"until.steps": [10, 20], "on.workers": ["auto", 2]})


def test_a_spec_of_another_run_is_refused_with_the_difference(tmp_path: Path, book: Path) -> None:
    run = begin(spec(book), runs=tmp_path).run
    with pytest.raises(UserError) as caught:
        begin(spec(book, "optim.lr=1e-3", "seed=7", "until.steps=99"), runs=tmp_path)
    assert "optim.lr: 0.0006 -> 0.001" in caught.value.problem
    assert "seed: 0 -> 7" in caught.value.problem
    assert "--new" in caught.value.remedy
    assert run.spec().until.steps == 10


def test_data_that_has_changed_is_refused(tmp_path: Path, book: Path) -> None:
    begin(spec(book), runs=tmp_path)
    book.write_text(book.read_text() + "The end.\n")
    with pytest.raises(UserError, match="what they hold now"):
        begin(spec(book), runs=tmp_path)


def test_moved_data_is_the_same_data(tmp_path: Path, book: Path) -> None:
    begin(spec(book), runs=tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    moved = book.rename(elsewhere / book.name)
    assert begin(spec(moved), runs=tmp_path).run.name == "tale"


def test_a_done_run_stays_done_until_more_steps_are_asked_for(tmp_path: Path, book: Path) -> None:
    run = begin(spec(book), runs=tmp_path).run
    run.checkpoint(10).mkdir()
    write_json(run.checkpoint(10) / "manifest.json", {"step": 10, "files": {}})
    run.write_exit(Exit(state="done", code=0, step=10, reason="all 10 steps are done"))
    assert begin(spec(book), runs=tmp_path).done == run.exit()
    assert begin(spec(book, "until.steps=5"), runs=tmp_path).done is not None
    assert begin(spec(book, "until.steps=20"), runs=tmp_path).done is None
    assert run.exit() is None


def test_a_run_without_its_checkpoints_restarts_only_on_request(tmp_path: Path, book: Path) -> None:
    run = begin(spec(book), runs=tmp_path).run
    run.write_exit(Exit(state="paused", code=75, step=10, reason="stopped as asked"))
    with pytest.raises(UserError, match="was saved at step 10, and none of its checkpoints can be used") as refused:
        begin(spec(book, "until.steps=20"), runs=tmp_path)
    assert "checkpoint.resume=0" in refused.value.remedy
    assert run.exit() is not None, "it is the only record that is left"
    assert run.spec().until.steps == 10
    assert begin(spec(book, "checkpoint.resume=0"), runs=tmp_path).done is None


@pytest.mark.parametrize("vocab", [299, 100_000, None])
def test_a_vocabulary_that_was_edited_is_noticed_before_training(tmp_path: Path, book: Path, vocab: int | None) -> None:
    run = begin(spec(book), runs=tmp_path).run
    model = run.spec().model.model_copy(update={"vocab": vocab})
    run.write_spec(run.spec().model_copy(update={"model": model}))
    with pytest.raises(UserError, match=f"has been changed: model.vocab is {vocab}, but the tokenizer has"):
        begin(spec(book), runs=tmp_path)


def test_a_done_run_that_resumes_from_an_earlier_step_is_not_done(tmp_path: Path, book: Path) -> None:
    run = begin(spec(book), runs=tmp_path).run
    run.write_exit(Exit(state="done", code=0, step=10, reason=""))
    assert begin(spec(book, "checkpoint.resume=5"), runs=tmp_path).done is None


def test_another_run_gets_the_next_free_name(tmp_path: Path, book: Path) -> None:
    assert free_name(spec(book), tmp_path).name == "tale"
    for name in ("tale", "tale-2"):
        named = free_name(spec(book), tmp_path)
        assert named.name == name
        begin(named, runs=tmp_path)
    assert free_name(spec(book), tmp_path).name == "tale-3"


def test_data_shorter_than_one_batch_is_refused_with_both_numbers(tmp_path: Path, book: Path) -> None:
    with pytest.raises(UserError, match=r"the data has \d+ tokens, less than one batch of 4000 × 32 = 128000"):
        begin(spec(book, "batch.sequences=4000"), runs=tmp_path)
    assert not RunDir(tmp_path / "tale").exists()


def test_a_vocabulary_may_be_padded_but_not_differ(tmp_path: Path, book: Path) -> None:
    with pytest.raises(UserError, match=r"model.vocab is 280, but the tokenizer has 300 tokens"):
        begin(spec(book, "model.vocab=280"), runs=tmp_path)
    with pytest.raises(UserError, match=r"set it from 300 to 384"):
        begin(spec(book, "model.vocab=50257"), runs=tmp_path)
    assert begin(spec(book, "model.vocab=384"), runs=tmp_path).spec.model.vocab == 384


def test_a_locked_run_is_not_changed(tmp_path: Path, book: Path) -> None:
    run = begin(spec(book), runs=tmp_path).run
    with run.lock(), pytest.raises(UserError, match="is being written by process"):
        begin(spec(book, "until.steps=20"), runs=tmp_path)
    assert run.spec().until.steps == 10


def test_a_runs_folder_that_cannot_be_created_is_refused(tmp_path: Path, book: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(UserError, match="runs"):
        begin(spec(book), runs=tmp_path / "runs")


@pytest.mark.parametrize("pattern", [".", "*", "**/*.jsonl", "*/*/*.yaml"])
def test_a_run_inside_its_own_data_is_refused(tmp_path: Path, book: Path, pattern: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    with pytest.raises(UserError, match="is inside its data") as caught:
        begin(spec(book, f"data={tmp_path}/{pattern}"), runs=tmp_path / "runs")
    assert "--runs DIR" in caught.value.remedy
    assert "more narrowly" in caught.value.remedy
    assert not (tmp_path / "runs").exists()


def test_a_run_beside_its_data_or_hidden_in_it_is_allowed(tmp_path: Path, book: Path) -> None:
    for number, (pattern, runs) in enumerate([("*.txt", "runs"), ("*/*.txt", "runs"), (".", ".runs")]):
        (tmp_path / "books").mkdir(exist_ok=True)
        (tmp_path / "books" / "b.txt").write_text(book.read_text())
        overrides = (f"data={tmp_path}/{pattern}", f"name=tale-{number}")
        first = begin(spec(book, *overrides), runs=tmp_path / runs)
        assert begin(spec(book, *overrides), runs=tmp_path / runs).tokens.path == first.tokens.path
        shutil.rmtree(tmp_path / runs)


def test_a_run_whose_text_was_deleted_resumes_with_its_tokens_and_reports_it(tmp_path: Path, book: Path) -> None:
    first = begin(spec(book), runs=tmp_path)
    book.unlink()
    second = begin(spec(book, "until.steps=20"), runs=tmp_path)
    assert (second.tokens.path, second.tokens.key) == (first.tokens.path, first.tokens.key)
    note = events_of(second.run)[-1]
    assert note["kind"] == "note"
    assert note["text"].startswith(f"{book} is gone: the run resumes with the tokens made of it")
    second.run.write_exit(Exit(state="done", code=0, step=20, reason="all 20 steps are done"))
    assert begin(spec(book, "until.steps=20"), runs=tmp_path).done
    assert events_of(second.run)[-1] == note, "a done run does not resume"


def test_a_missing_folder_or_glob_counts_as_deleted_text(tmp_path: Path, book: Path) -> None:
    folder = tmp_path / "books"
    folder.mkdir()
    book.rename(folder / "a.txt")
    overrides = (f"data.path=[{folder}, '{folder}/*.txt']",)
    first = begin(spec(book, *overrides), runs=tmp_path / "runs")
    folder.rename(tmp_path / "elsewhere")
    assert begin(spec(book, *overrides), runs=tmp_path / "runs").tokens.key == first.tokens.key


def test_partly_deleted_or_changed_text_is_refused(tmp_path: Path, book: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text(book.read_text())
    both = (f"data.path=[{book}, {other}]",)
    run = begin(spec(book, *both), runs=tmp_path / "runs").run
    other.unlink()
    with pytest.raises(UserError, match=r"other\.txt does not exist"):
        begin(spec(book, *both), runs=tmp_path / "runs")
    book.unlink()
    with pytest.raises(UserError, match="does not exist"):
        begin(spec(book, *both, "data.validation=2%"), runs=tmp_path / "runs")
    shutil.rmtree(run.data().shards)
    with pytest.raises(UserError, match="does not exist"):
        begin(spec(book, *both), runs=tmp_path / "runs")
    assert events_of(run) == []


def test_values_of_environment_variables_are_in_no_message(tmp_path: Path, book: Path) -> None:
    begin(spec(book, "env.KEY=hunter2"), runs=tmp_path)
    with pytest.raises(UserError) as caught:
        begin(spec(book, "env.KEY=swordfish"), runs=tmp_path)
    assert "env.KEY: … -> …" in caught.value.problem
