"""`stoker replay` on real runs: killed, running, in a terminal, in a pipe, and mistakes."""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.rundir import RunDir
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

RUN_FILE = """\
name: tale
model: {layers: 1, heads: 1, width: 16, context: 16, dropout: 0.1}
data: {path: data, tokenizer: {train: 300}}
batch: {sequences: 4, length: 16}
until: {steps: 12}
precision: fp32
compile: false
eval: {every: 0, sequences: 2}
log: {every: 1, tensorboard: false}
checkpoint: {every: 4}
on: {device: cpu, workers: 2}
"""


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    write_inputs(tmp_path)
    return tmp_path


def write_inputs(folder: Path) -> None:
    (folder / "run.yaml").write_text(RUN_FILE)
    (folder / "data").mkdir()
    texts = [f"It was day {i}, and the sea was calm.\n" for i in range(600)]
    (folder / "data/a.txt").write_text("".join(texts[:200]))
    (folder / "data/b.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[200:400]))
    (folder / "data/c.csv.gz").write_bytes(
        gzip.compress(("text\n" + "".join(f'"{t}"\n' for t in texts[400:])).encode())
    )


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one worker and 4 steps, of which the first and the last step are logged."""
    folder = tmp_path_factory.mktemp("short")
    write_inputs(folder)
    arguments = ["train", "run.yaml", "until.steps=4", "log.every=4", "on.workers=1"]
    subprocess.run([sys.executable, "-m", "stoker", *arguments], cwd=folder, check=True, capture_output=True)
    return folder / "runs" / "tale"


@pytest.fixture
def run(short: Path, tmp_path: Path) -> RunDir:
    """The same run under ./runs of this test."""
    return RunDir(Path(shutil.copytree(short, tmp_path / "runs" / "tale")))


def losses(run) -> dict[int, float]:
    return {record["step"]: record["loss"] for record in run.metrics()}


@pytest.mark.soak
@pytest.mark.usefixtures("workdir")
def test_a_step_of_a_killed_run_has_the_recorded_loss(stoker, eventually, kill_tree, terminal) -> None:
    run = stoker.run("tale")
    process = stoker.start("train", "run.yaml", "until.steps=1M", "checkpoint.keep=1000", "optim.horizon=100")
    eventually(lambda: [saved for saved in run.saved() if saved.step >= 8])
    kill_tree(process)
    reached = max(saved.step for saved in run.saved())
    stoker("train", "run.yaml", f"until.steps={reached + 3}", "checkpoint.keep=1000", "optim.horizon=100")

    step = reached + 2
    result = json.loads(stoker("replay", "tale", "--step", str(step), "--json").stdout)
    assert (result["step"], result["attempt"], result["workers"]) == (step, 2, 2)
    assert (result["in_order"], result["in_shards"]) == (True, True)
    replayed = result["replayed"]
    assert (replayed["loss"], replayed["equal"], replayed["start"]) == (losses(run)[step], True, reached)
    assert [view["rank"] for view in result["samples"]] == [0, 0, 1, 1]
    for view in result["samples"]:
        for document in view["documents"]:
            assert document["place"] is not None
            if document["file"].endswith("a.txt"):
                assert Path(document["file"]).read_text()[document["place"] :].startswith(document["text"])
            elif document["file"].endswith("b.jsonl"):
                line = Path(document["file"]).read_text().splitlines()[document["place"] - 1]
                assert json.loads(line)["text"][document["character"] :].startswith(document["text"])

    screen = terminal("replay", "tale", "--step", "6")  # of the attempt that was killed
    text = screen.read()
    assert screen.process.wait() == 0, text
    assert "the computed order gives the same samples, and the shards hold the same tokens" in text
    assert "steps 5 to 6, from the checkpoint of step 4, with 2 workers" in text
    assert f"{losses(run)[6]!r}: equal to metrics.jsonl, bit for bit" in text


@pytest.mark.usefixtures("workdir")
def test_a_step_of_a_running_run_is_replayed(stoker, eventually) -> None:
    run = stoker.run("tale")
    process = stoker.start("train", "run.yaml", "until.steps=1M", "optim.horizon=100", "checkpoint.every=50")
    eventually(lambda: 3 in losses(run))
    result = json.loads(stoker("replay", "tale", "--step", "3", "--json").stdout)
    assert process.poll() is None
    assert (result["replayed"]["equal"], result["replayed"]["start"]) == (True, 0)
    stoker("stop", "tale")
    assert process.wait() == 0
    assert stoker("audit", "tale").returncode == 0


def test_documents_alone_need_no_torch(stoker, workdir: Path) -> None:
    stoker("train", "run.yaml", "until.steps=2", "on.workers=1")
    arguments = ["replay", "tale", "--step", "1", "--no-loss", "--samples", "2"]
    code = f"import sys; sys.modules['torch'] = None; from stoker.cli.main import main; sys.exit(main({arguments!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=workdir, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "SAMPLE  RANK  TOKENS  FILE" in done.stdout
    assert "2 more: --samples 4 shows them" in done.stdout
    assert "loss" not in done.stdout
    assert max(map(len, done.stdout.splitlines()[4:])) <= 120
    (workdir / "data/a.txt").unlink()
    (workdir / "data/b.jsonl").write_text("")
    (workdir / "data/c.csv.gz").unlink()
    done = stoker("replay", "tale", "--step", "1", "--no-loss")
    assert "it is gone; only the text is shown" in done.stdout or "it has changed" in done.stdout
    assert "calm" in done.stdout


def test_a_loss_is_equal_not_logged_or_different(command, run: RunDir) -> None:
    output = command("replay", "tale", "--step", "1").stdout
    assert "\x1b" not in output
    assert "step 1, from the beginning, with 1 worker" in output
    assert f"{losses(run)[1]!r}: equal to metrics.jsonl, bit for bit" in output
    assert "metrics.jsonl has no line for step 2 to compare it with" in command("replay", "tale", "--step", "2").stdout
    run.add_metrics({"step": 1, "loss": losses(run)[1] + 0.5})
    done = command("replay", "tale", "--step", "1")
    assert done.returncode == 3
    assert "differs by 0.5 from" in done.stdout
    assert "not known: the machine" in done.stdout


@pytest.mark.soak
def test_an_interrupt_leaves_no_process_and_no_folder(
    stoker, workdir: Path, tmp_path_factory, eventually: Callable[..., None]
) -> None:
    stoker("train", "run.yaml", "until.steps=100", "log.every=100", "checkpoint.every=1000", "on.workers=1")
    folder = tmp_path_factory.mktemp("temporary")
    environment = os.environ | {"TMPDIR": str(folder)}
    process = subprocess.Popen(
        [sys.executable, "-m", "stoker", "replay", "tale", "--step", "99"],
        cwd=workdir, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    eventually(lambda: list(folder.glob("stoker-replay-*/tale/metrics.jsonl")) or process.poll() is not None)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (130, "")
    assert "steps 1 to 99, all 99 of them, as there is no earlier checkpoint, with 1 worker" in out
    assert list(folder.glob("stoker-*")) == []


def test_bad_input_gets_one_line_and_a_remedy(stoker, command, run: RunDir, tmp_path: Path) -> None:
    def refused(*arguments: str) -> str:
        done = command("replay", *arguments)
        assert done.returncode == 2, done.stdout + done.stderr
        (line,) = done.stderr.splitlines()
        return line

    assert "has not reached step 5; its last is step 4. Give a step from 1 to 4" in refused("tale", "--step", "5")
    assert "--step is 0. Give a number from 1" in refused("tale", "--step", "0")
    assert "--step is -4" in refused("tale", "--step", "-4")
    assert "--samples is 0" in refused("tale", "--step", "1", "--samples", "0")
    assert "Did you mean tale?" in refused("tail", "--step", "1")
    tokens = Path(run.data().shards)
    tokens.rename(tokens.with_name("away"))
    message = refused("tale", "--step", "1")
    tokens.with_name("away").rename(tokens)
    assert "is missing. Restore it" in message
    shutil.rmtree(run.ledger)
    run.ledger.mkdir()
    assert "has not trained a step yet" in refused("tale", "--step", "1")
    (tmp_path / "own.py").write_text("")
    (tmp_path / "own.yaml").write_text("name: own\nscript: own.py\non: {workers: 1, device: cpu}\n")
    stoker("train", "own.yaml")
    assert "runs a script" in refused("own", "--step", "1")
