"""A step trained again from the nearest checkpoint gives the recorded loss, bit for bit."""

import csv
import gzip
import io
import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from stoker.api.launch import follow, launch, plan
from stoker.api.replay import Replayed, scratch
from stoker.data.shards import TokenSet
from stoker.rundir import Record, RunDir
from stoker.spec.errors import RunFailed, UserError
from stoker.spec.load import load

pytestmark = pytest.mark.slow

SEQUENCES = 5
OVERRIDES = [
    "model.layers=2", "model.heads=2", "model.width=32", "model.context=32", "model.dropout=0.1",
    f"batch.sequences={SEQUENCES}", "batch.length=32", "data.tokenizer={train: 300}", "data.validation=0.05",
    "precision=fp32", "compile=false", "log.every=1", "log.tensorboard=false", "eval.every=4", "eval.sequences=4",
    "checkpoint.every=4", "checkpoint.keep=100", "optim.lr=1e-3", "on.device=cpu", "on.max_restarts=0",
]  # fmt: skip


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with text in several formats, where the runs are kept too."""
    folder = tmp_path_factory.mktemp("replay")
    (folder / "data").mkdir()
    texts = [f"On day {i} the stoker fed the fire, and the fire asked for more.\n" for i in range(100)]
    (folder / "data/a.txt").write_text("".join(texts[:25]))
    (folder / "data/b.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[25:50]))
    rows = io.StringIO()
    csv.writer(rows).writerows([["text"], *([text] for text in texts[50:75])])
    (folder / "data/c.csv").write_text(rows.getvalue())
    (folder / "data/d.txt.gz").write_bytes(gzip.compress("".join(texts[75:]).encode()))
    return folder


def train(workdir: Path, *overrides: str) -> RunDir:
    spec = load(None, [f"data.path={workdir / 'data'}", *OVERRIDES, *overrides]).spec
    run = RunDir(workdir / "runs" / spec.name)
    running = launch(plan(spec, runs=workdir / "runs"), detached=False).running
    assert running is not None
    assert follow(running) == 0, run.exit()
    return run


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.soak)])
def run(workdir: Path, request: pytest.FixtureRequest) -> RunDir:
    """One epoch, whose last step is short."""
    trained = train(workdir, f"name=whole-{request.param}", "until.epochs=1", f"on.workers={request.param}")
    samples = TokenSet.open(Path(trained.data().shards)).train.samples(32)
    assert samples % SEQUENCES, "the last step should be short"
    assert last(trained) == -(-samples // SEQUENCES) > 9
    return trained


def last(run: RunDir) -> int:
    return int(run.metrics()[-1]["step"])


def replay(run: RunDir, step: int) -> Replayed:
    steps: list[int] = []

    def look(records: list[Record]) -> bool:
        steps.extend(record["step"] for record in records)
        return False

    with scratch(run, step) as copy:
        replayed = copy.train(look)
    assert replayed is not None
    assert steps == list(range(replayed.start + 1, step + 1))
    assert not copy.copy.path.parent.exists()
    return replayed


def content(run: RunDir) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(run.path.rglob("*")) if path.is_file()}


def recorded(run: RunDir, step: int) -> float:
    return float(next(record["loss"] for record in run.metrics() if record["step"] == step))


def test_the_short_last_step_of_an_epoch_is_equal_and_the_run_is_unchanged(run: RunDir) -> None:
    before = content(run)
    step = last(run)
    replayed = replay(run, step)
    assert (replayed.loss, replayed.equal, replayed.difference) == (recorded(run, step), True, 0.0)
    assert replayed.start == max(saved.step for saved in run.saved() if saved.step < step)
    assert replayed.workers == run.spec().on.workers
    assert replayed.reasons == []
    assert content(run) == before


@pytest.mark.soak
def test_a_step_before_every_checkpoint_is_trained_from_the_beginning(run: RunDir) -> None:
    replayed = replay(run, 3)
    assert (replayed.start, replayed.equal, replayed.loss) == (0, True, recorded(run, 3))


def test_a_run_that_resumed_after_a_short_step_with_other_workers_is_replayed(workdir: Path) -> None:
    train(workdir, "name=changed", "until.epochs=1", "on.workers=1", "optim.horizon=40", "batch.micro=2")
    run = RunDir(workdir / "runs/changed")
    end = last(run)
    train(workdir, "name=changed", "until.epochs=2", "on.workers=2", "optim.horizon=50", "batch.micro=3")
    for saved in run.saved():
        if saved.step > 4:
            shutil.rmtree(saved.path)
    step = end + 2
    with scratch(run, step) as copy:
        assert copy.start == 4
        assert [(leg.stop, leg.workers, leg.epochs) for leg in copy.legs] == [(end, 1, 1), (step, 2, None)]
        assert [leg.settings["horizon"] for leg in copy.legs] == [40, 50]
    replayed = replay(run, step)
    assert (replayed.loss, replayed.equal) == (recorded(run, step), True)


def test_a_damaged_or_partly_deleted_checkpoint_is_skipped(run: RunDir, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "whole")
    copied = RunDir(tmp_path / "whole")
    with scratch(copied, 10) as copy:
        assert copy.start == 8
    shard = next(copied.checkpoint(8).glob("*.distcp"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with scratch(copied, 10) as copy:
        assert copy.start == 4
        assert [saved.step for saved in copy.copy.saved()] == [4]
    next(copied.checkpoint(4).glob("*.distcp")).unlink()
    with scratch(copied, 10) as copy:
        assert copy.start == 0


def test_a_stopped_replay_returns_nothing_and_leaves_nothing(run: RunDir) -> None:
    with scratch(run, 3) as copy:
        assert copy.train(lambda _: True) is None
    assert not copy.copy.path.parent.exists()


def test_a_step_that_cannot_be_trained_again_is_refused_with_the_reason(run: RunDir) -> None:
    with pytest.raises(UserError, match="has not reached step 999"), scratch(run, 999):
        pass
    with scratch(run, 1) as copy:
        shutil.rmtree(copy.copy.path / "ledger")
        (copy.copy.path / "ledger").write_text("in the way")
        with pytest.raises(UserError, match="ledger is a file where a folder should be"):
            copy.train(lambda _: False)
    with scratch(run, 1) as copy, pytest.raises(RunFailed, match="training up to step 1 again failed"):
        copy.train(lambda _: kill_supervisor(copy.copy))


def kill_supervisor(run: RunDir) -> bool:
    if holder := run.holder():
        os.kill(holder["pid"], signal.SIGKILL)
    return False
