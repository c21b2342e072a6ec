"""A run on a stream uses the same samples in the same order, whatever is killed, at any number of workers."""

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.data.sets import open_set, set_of
from stoker.data.shards import TokenSet
from stoker.data.stream.feeder import feeder_of
from stoker.observe.audit import audit
from stoker.rundir import RunDir
from stoker.spec.errors import UserError
from stoker.spec.load import load
from stoker.train.batches import Batches
from tests.training import HOLD
from tests.written import events_of

STEPS = 40
OVERRIDES = [
    "model.layers=2", "model.heads=2", "model.width=32", "model.context=32",
    "batch.sequences=12", "batch.length=32", f"until.steps={STEPS}", f"optim.horizon={STEPS}", "compile=false",
    "precision=fp32", "checkpoint.every=5", "log.every=1", "eval.every=20", "optim.warmup=5", "optim.lr=1e-3",
    "data.stream=true", "data.window=2000", "data.ahead=2", "data.tokenizer={train: 300}", "data.validation=5%",
    "on.device=cpu", "log.tensorboard=false",
]  # fmt: skip


@pytest.fixture(scope="session")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About ten windows of JSON lines."""
    folder = tmp_path_factory.mktemp("lines")
    draw = random.Random(7)
    for number in range(8):
        texts = [" ".join(draw.choices(["coal", "fire", "grate", "steam", "iron"], k=12)) for _ in range(200)]
        (folder / f"{number}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return folder


def losses(run) -> dict[int, float]:
    return {record["step"]: record["loss"] for record in run.metrics()}


def samples(run) -> list[int]:
    """The samples of the final steps, in order."""
    by_step: dict[int, dict[int, list[int]]] = {}
    for path in sorted(run.ledger.glob("*.jsonl")):
        head, *records = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
        for step in [step for step in by_step if step > head["start"] and not by_step[step].get(-head["attempt"])]:
            del by_step[step]
        for record in records:
            by_step.setdefault(record["step"], {-head["attempt"]: [1]})[head["rank"]] = record["samples"]
    ids = []
    for step in sorted(by_step):
        ids += [id for rank in sorted(by_step[step]) if rank >= 0 for id in by_step[step][rank]]
    return ids


def last_step(run) -> int:
    metrics = run.metrics() if (run.path / "metrics.jsonl").exists() else []
    return metrics[-1]["step"] if metrics else 0


def feeders(pid: int) -> list[int]:
    pids = []
    for task in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            argv, status = task.read_text().split("\0"), (task.parent / "status").read_text()
        except OSError:
            continue
        if "stoker.data.stream" in argv and f"PPid:\t{pid}\n" in status:
            pids.append(int(task.parent.name))
    return pids


@pytest.mark.parametrize("path", ["lines", "mixture"])
def test_no_sample_is_seen_twice_at_1_2_or_4_workers_and_the_order_is_the_same(
    lines: Path, tmp_path: Path, path: str
) -> None:
    overrides = [*OVERRIDES, f"data.path={lines}"]
    if path == "mixture":
        parts = [{"path": f"{lines}/0.jsonl", "weight": 1}, {"path": f"{lines}/[1-7].jsonl", "weight": 2}]
        overrides = [override for override in OVERRIDES if "stream" not in override] + [f"data.mix={json.dumps(parts)}"]
    spec = load(None, overrides).training
    seen = {}
    for world in (1, 2, 4):
        tokens = set_of(spec.data, tmp_path / f"store-{world}")
        feeder = feeder_of(tokens)
        ranks = [_batches(open_set(tokens.path) if rank else tokens, rank, world) for rank in range(world)]
        seen[world] = []
        for step in range(1, STEPS + 1):
            shares = [batches.get(step) for batches in ranks]
            seen[world] += [id for batch in shares if batch for id in batch.samples.tolist()]
        for batches in ranks:
            batches.close()
        if feeder:
            feeder.close()
    assert len(seen[1]) == STEPS * 12
    assert seen[1] == seen[2] == seen[4]
    if path == "lines":
        assert len(set(seen[1])) == len(seen[1])


def _batches(tokens: TokenSet, rank: int, world: int) -> Batches:
    return Batches(
        tokens.train,
        part=rank,
        parts=world,
        seed=3,
        sequences=12,
        length=32,
        rows=12,
        positions=None,
        since=(0, 0),
    )


@pytest.mark.parametrize("everything", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_killed_worker_and_a_killed_feeder_change_no_bit(
    stoker, lines: Path, eventually: Callable[..., None], workers_of, kill_tree, everything: bool
) -> None:
    workers = 4 if everything else 1
    overrides = [*OVERRIDES, f"data.path={lines}", f"on.workers={workers}"]
    stoker("train", "name=whole", *overrides)
    whole, run = stoker.run("whole"), RunDir(stoker.folder / "other" / "killed")
    (stoker.folder / "mine.py").write_text(HOLD)
    held = stoker.folder / "hold-30"
    held.touch()
    overrides.append("callbacks=[mine:hold]")
    process = stoker.start("train", "name=killed", *overrides, "--runs", "other")  # with a store of its own
    eventually(lambda: last_step(run) >= 2)
    for feeder in feeders(workers_of(process)[0]):
        os.kill(feeder, signal.SIGKILL)
    eventually(lambda: last_step(run) >= 7)
    os.kill(random.choice(workers_of(process)), signal.SIGKILL)
    if everything:
        eventually(lambda: sum(event["kind"] == "started" for event in events_of(run)) == 2 and last_step(run) >= 9)
        kill_tree(process)
        process = stoker.start("train", "name=killed", *overrides, "--runs", "other")
    held.unlink()
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output

    assert losses(run) == losses(whole)
    for audited in (whole, run):
        assert samples(audited) == samples(whole)
        report = audit(audited)
        assert (report.ok, report.missing, report.duplicated, report.mismatched) == (True, 0, 0, 0), report
    assert len(set(samples(run))) == len(samples(run)) == STEPS * 12


@pytest.mark.soak
def test_it_resumes_at_another_number_of_workers_past_the_end_and_replays(stoker, worker, lines: Path) -> None:
    overrides = [*OVERRIDES, f"data.path={lines}", "data.window=6k"]
    run = worker("name=run", *overrides, "until.steps=10")
    stoker("train", "name=run", *overrides, "until.steps=25", "on.workers=2", "--runs", "here")
    worker("name=run", *overrides, "until.steps=120")
    report = audit(run)
    assert report.ok, report
    assert report.epochs >= 1, "it has reached the end of the data and repeats it"
    shown = json.loads(stoker("replay", "here/run", "--step", "118", "--json").stdout)
    assert shown["in_order"]
    assert shown["in_shards"]
    assert shown["replayed"]["equal"]
    assert shown["samples"][0]["documents"][0]["file"].endswith(".jsonl")


def test_waiting_for_data_is_measured_and_reported_and_can_be_stopped(stoker, hub, lines: Path, eventually) -> None:
    server = hub()
    for file in lines.iterdir():
        server.write(f"datasets/owner/lines/{file.name}", file.read_bytes())
    overrides = [*OVERRIDES, "data.path=hf://datasets/owner/lines", "on.workers=2", "until.steps=10k", "data.ahead=1"]
    process = stoker.start("train", "name=run", *overrides)
    run = stoker.run("run")
    eventually(lambda: any(event["kind"] == "world" for event in events_of(run)))
    os.kill(server.process.pid, signal.SIGSTOP)  # the network hangs
    try:
        eventually(lambda: any(event["kind"] == "waiting" for event in events_of(run)) or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=120)
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    assert "waits for its data" in output, output
    assert process.returncode == 130, output
    assert run.exit().state == "paused"
    assert run.saved()[-1].step == last_step(run)


def test_an_error_of_the_feeder_saves_and_ends_the_run_with_its_remedy(worker, tmp_path: Path, lines: Path) -> None:
    folder = tmp_path / "lines"
    folder.mkdir()
    for file in lines.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    with open(folder / "5.jsonl", "a") as file:
        file.write('{"text": 7}\n')
    run = worker("name=run", *OVERRIDES, f"data.path={folder}", "until.steps=1000", code=2)
    exit = run.exit()
    assert "5.jsonl, line 201" in exit.reason
    assert "data.skip_bad=true" in exit.remedy
    assert run.saved()[-1].step == last_step(run) >= 10, "all trained steps are saved"
    assert audit(run).ok


def test_epochs_are_refused_until_the_end_is_known(worker, lines: Path) -> None:
    overrides = [*OVERRIDES, f"data.path={lines}", "until={steps: null, epochs: 1}"]
    with pytest.raises(UserError, match=r"until\.epochs.*Set until\.steps or until\.tokens"):
        worker("name=run", *overrides)
    run = worker("name=small", *overrides, "data.window=64M")  # all of it is in the first window
    assert audit(run).epochs == 1
