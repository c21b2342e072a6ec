"""A run on a stream: the same samples in the same order, whatever is killed, at any number of workers."""

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

STEPS = 40
WORDS = [
    "model.layers=2", "model.heads=2", "model.width=32", "model.context=32",
    "batch.sequences=12", "batch.length=32", f"until.steps={STEPS}", f"optim.horizon={STEPS}", "compile=false",
    "precision=fp32", "checkpoint.every=10", "log.every=1", "eval.every=20", "optim.warmup=5", "optim.lr=1e-3",
    "data.stream=true", "data.window=2000", "data.ahead=2", "data.tokenizer={train: 300}", "data.validation=5%",
]  # fmt: skip


@pytest.fixture(scope="session")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About fifteen windows of JSON lines."""
    folder = tmp_path_factory.mktemp("lines")
    draw = random.Random(7)
    for number in range(8):
        words = [" ".join(draw.choices(["coal", "fire", "grate", "steam", "iron"], k=12)) for _ in range(140)]
        (folder / f"{number}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in words))
    return folder


def losses(run) -> dict[int, float]:
    return {record["step"]: record["loss"] for record in run.metrics()}


def samples(run) -> list[int]:
    """What the steps that count were trained on, in order."""
    by_step: dict[int, dict[int, list[int]]] = {}
    for path in sorted(run.ledger.glob("*.jsonl")):
        head, *records = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
        for step in [step for step in by_step if step > head["start"] and not by_step[step].get(-head["attempt"])]:
            del by_step[step]
        for record in records:
            by_step.setdefault(record["step"], {-head["attempt"]: [1]})[head["rank"]] = record["samples"]
    found = []
    for step in sorted(by_step):
        found += [id for rank in sorted(by_step[step]) if rank >= 0 for id in by_step[step][rank]]
    return found


def last_step(run) -> int:
    metrics = run.metrics() if (run.path / "metrics.jsonl").exists() else []
    return metrics[-1]["step"] if metrics else 0


def feeders(pid: int) -> list[int]:
    found = []
    for task in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            argv, status = task.read_text().split("\0"), (task.parent / "status").read_text()
        except OSError:
            continue
        if "stoker.data.stream" in argv and f"PPid:\t{pid}\n" in status:
            found.append(int(task.parent.name))
    return found


def assert_proven(stoker, name: str) -> None:
    report = json.loads(stoker("audit", name, "--json").stdout)
    assert (report["ok"], report["missing"], report["duplicated"], report["mismatched"]) == (True, 0, 0, 0), report


def test_no_sample_is_seen_twice_at_1_2_or_4_workers_and_the_order_is_the_same(stoker, lines: Path) -> None:
    seen = {}
    for workers in (1, 2, 4):
        stoker("train", f"name=by-{workers}", *WORDS, f"data.path={lines}", f"on.workers={workers}", "until.steps=20")
        seen[workers] = samples(stoker.run(f"by-{workers}"))
        assert len(set(seen[workers])) == len(seen[workers]) == 20 * 12
        assert_proven(stoker, f"by-{workers}")
    assert seen[1] == seen[2] == seen[4]


def test_a_killed_worker_and_a_killed_feeder_change_no_bit(
    stoker, lines: Path, eventually: Callable[..., None], workers_of, kill_tree
) -> None:
    words = [*WORDS, f"data.path={lines}", "on.workers=2"]
    stoker("train", "name=whole", *words, "--runs", "one")
    process = stoker.start("train", "name=killed", *words)
    run = stoker.run("killed")
    eventually(lambda: last_step(run) >= 3)
    for feeder in feeders(workers_of(process)[0]):
        os.kill(feeder, signal.SIGKILL)
    eventually(lambda: last_step(run) >= 12)
    os.kill(random.choice(workers_of(process)), signal.SIGKILL)
    eventually(lambda: sum(event["kind"] == "resumed" for event in run.events()) == 1 and last_step(run) >= 23)
    kill_tree(process)
    stoker("train", "name=killed", *words)
    whole = type(run)(stoker.folder / "one" / "whole")
    assert losses(run) == losses(whole)
    assert samples(run) == samples(whole)
    assert_proven(stoker, "killed")
    assert not feeders(os.getpid())


def test_it_goes_on_at_other_numbers_of_workers_past_the_end_and_replays(stoker, lines: Path) -> None:
    words = [*WORDS, f"data.path={lines}", "data.window=6k"]
    for steps, workers in ((10, 1), (25, 2), (90, 1)):
        stoker("train", "name=run", *words, f"until.steps={steps}", f"on.workers={workers}")
    report = json.loads(stoker("audit", "run", "--json").stdout)
    assert report["ok"], report
    assert report["epochs"] == 1, "the end was found, and a second time through begun"
    shown = json.loads(stoker("replay", "run", "--step", "88", "--json").stdout)
    assert shown["in_order"]
    assert shown["in_shards"]
    assert shown["replayed"]["equal"]
    assert shown["samples"][0]["documents"][0]["file"].endswith(".jsonl")


def test_waiting_for_data_is_counted_and_told_and_can_be_stopped(stoker, hub, lines: Path, eventually) -> None:
    server = hub()
    for file in lines.iterdir():
        server.write(f"datasets/owner/lines/{file.name}", file.read_bytes())
    words = [*WORDS, "data.path=hf://datasets/owner/lines", "on.workers=2", "until.steps=1000", "checkpoint.every=1000"]
    stoker("train", "name=run", *words, "until.steps=1")
    run = stoker.run("run")
    os.kill(server.process.pid, signal.SIGSTOP)  # the network hangs
    try:
        process = stoker.start("train", "name=run", *words, "until.steps=1000")
        eventually(lambda: process.poll() is not None or any(event["kind"] == "waiting" for event in run.events()))
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert "waits for its data" in output, output
    assert process.returncode in (130, 0)
    assert run.exit().state in ("paused", "done")


def test_what_the_feeder_meets_ends_the_run_saved_and_with_its_remedy(stoker, tmp_path: Path, lines: Path) -> None:
    folder = tmp_path / "lines"
    folder.mkdir()
    for file in lines.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    with open(folder / "5.jsonl", "a") as file:
        file.write('{"text": 7}\n')
    words = [*WORDS, f"data.path={folder}", "on.workers=2", "until.steps=1000"]
    done = stoker("train", "name=run", *words, code=2)
    assert "5.jsonl, line 141" in done.stderr
    assert "data.skip_bad=true" in done.stderr
    assert "Traceback" not in done.stderr
    run = stoker.run("run")
    assert run.saved()[-1].step == last_step(run) > 20, "what was trained is saved"
    assert_proven(stoker, "run")


def test_epochs_are_refused_until_the_end_is_known(stoker, lines: Path) -> None:
    words = [*WORDS, f"data.path={lines}", "on.workers=1"]
    refused = stoker("train", "name=run", *words, "until={epochs: 1}", code=2)
    assert "until.epochs" in refused.stderr
    assert "until.steps or until.tokens" in refused.stderr
    small = [word for word in words if "window" not in word]
    stoker("train", "name=small", *small, "until={epochs: 1}")  # all of it is in the first window
    assert json.loads(stoker("audit", "small", "--json").stdout)["epochs"] == 1
