"""A model, texts and callbacks of the user's own, from the command line, also when workers are killed."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

EXAMPLE = Path(__file__).parents[2] / "examples" / "04-own-code"
ARGUMENTS = [
    "run.yaml", "until.steps=24", "checkpoint.every=8", "log.every=1", "eval.every=6", "precision=fp32",
    "model.layers=1", "model.dropout=0", "batch={sequences: 5, length: 32}", "optim.warmup=2",
]  # fmt: skip


@pytest.fixture
def workdir(stoker) -> Path:
    """The example, in the folder that the command runs in."""
    for name in ("run.yaml", "mine.py"):
        (stoker.folder / name).write_text((EXAMPLE / name).read_text())
    return stoker.folder


def refusal(stoker, *arguments: str) -> str:
    done = stoker(*arguments, code=2)
    assert "Traceback" not in done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    return line


def losses(run) -> dict[int, float]:
    return {record["step"]: record["loss"] for record in run.metrics()}


def test_a_killed_run_with_own_code_has_the_losses_of_an_undisturbed_one(
    stoker, workdir: Path, eventually, workers_of
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    (workdir / "mine.py").write_text(WITH_A_BUFFER.format(mine=(EXAMPLE / "mine.py").read_text()))
    arguments = [*ARGUMENTS, "on.workers=2"]
    stoker("train", *arguments, "name=whole")

    run = stoker.run("killed")
    step = draw.choice([s for s in range(9, 24) if s % 8])
    (workdir / "hold.py").write_text(HOLD.format(step=step))
    process = stoker.start("train", *arguments, "name=killed", "callbacks=[hold:hold]")
    eventually(lambda: any(record["step"] == step for record in run.metrics()) or process.poll() is not None)
    os.kill(draw.choice(workers_of(process)), signal.SIGKILL)
    (workdir / "go").touch()
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output
    assert "was killed by SIGKILL; restarting" in output
    assert losses(run) == losses(stoker.run("whole"))
    report = json.loads(stoker("audit", "killed", "--json").stdout)
    assert (report["ok"], report["missing"], report["duplicated"]) == (True, 0, 0)
    assert (workdir / "asked").read_text() == "xx", "each run asked for its texts once, however often it started"
    assert {record["world"] for record in run.metrics()} == {2}


HOLD = """
import time
from pathlib import Path


def hold(record):
    while record["step"] == {step} and not Path("go").exists():
        time.sleep(0.05)
"""
WITH_A_BUFFER = '''{mine}
import torch

class Shifted(Memory):
    """It keeps a mean of what it has seen: each worker sees another part of the batch."""

    def __init__(self, shape):
        super().__init__(shape)
        self.register_buffer("mean", torch.zeros(shape.vocab))

    def forward(self, tokens):
        logits = super().forward(tokens)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * logits.detach().mean((0, 1))
        return logits - self.mean

ours, build = source, Shifted

def source():
    with open("asked", "a") as file:
        file.write("x")
    yield from ours()
'''


@pytest.mark.soak
def test_the_example_trains_and_its_model_generates_and_is_evaluated(stoker, workdir: Path) -> None:
    output = stoker("train", *ARGUMENTS, "until.steps=4", "name=own").stdout
    assert "mine:build, your own" in output
    assert "parameters" not in output
    assert "collecting texts" in output
    run = stoker.run("own")
    assert [record["step"] for record in run.metrics()] == [1, 2, 3, 4]
    assert "step 4" in (run.path / "logs" / "rank-0.log").read_text(), "what the callback prints is in the log"
    assert stoker("generate", "own", "--tokens", "8").stdout
    assert "loss" in stoker("eval", "own").stdout
    line = refusal(stoker, "export", "own", "-o", "out")
    assert "mine:build" in line
    assert not (workdir / "out").exists()


REFUSED = [
    (["model.family=gone:build"], ["model.family names gone:build", "there is no module gone", "the folder"]),
    (["model.family=mine:gone"], ["mine has no gone", "Define gone in", "mine.py"]),
    (["model.family=needy:build"], ["needs not_there_at_all", "pip install not_there_at_all"]),
    (["model.family=torn:build"], ["torn.py, line 1 is not Python"]),
    (["model=gone:build"], ["model.family names gone:build"]),
    (["data=gone:source"], ["data.path names gone:source", "there is no module gone"]),
    (["data=mine:gone"], ["data.path names mine:gone", "mine has no gone"]),
    (["data=needy:source"], ["data.path", "needs not_there_at_all"]),
    (["data=torn:source"], ["data.path", "importing torn fails: SyntaxError"]),
    (["callbacks=[mine:gone]"], ["callbacks names mine:gone"]),
    (["callbacks=[gone:Gone]"], ["callbacks names gone:Gone", "there is no module gone"]),
    (["callbacks=mine:Tell"], ["callbacks"]),
    (["log.attention=true"], ["log.attention", "mine:build"]),
    (["batch.length=999"], ["batch.length 999 is more than model.context"]),
]


def test_code_that_cannot_be_imported_is_refused_before_anything_is_created(workdir: Path) -> None:
    (workdir / "needy.py").write_text("import not_there_at_all\ndef build(shape): ...\ndef source(): yield 'a'\n")
    (workdir / "torn.py").write_text("def build(:\n")
    program = (
        "import json, sys\n"
        "from stoker.cli.main import main\n"
        "for arguments in json.load(sys.stdin):\n"
        "    assert main(['train', 'run.yaml', *arguments]) == 2, arguments\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps([arguments for arguments, _ in REFUSED]), cwd=workdir,
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for line, (_, parts) in zip(done.stderr.splitlines(), REFUSED, strict=True):
        assert [part for part in parts if part not in line] == [], line
    assert not (workdir / "runs").exists()


def test_a_failing_source_is_reported_with_its_line(stoker, workdir: Path) -> None:
    (workdir / "bad.py").write_text("def source():\n    yield 'a'\n    raise RuntimeError('the tape tore')\n")
    line = refusal(stoker, "train", "run.yaml", "data=bad:source")
    assert "data.path names bad:source, and it fails: RuntimeError: the tape tore (bad.py, line 3)" in line
    assert [path.name for path in (workdir / "runs").iterdir()] == [".prepared"]
    assert "the tape tore" in refusal(stoker, "prepare", "bad:source", "-o", "out")


def test_prepare_with_a_source_in_a_pipe_and_in_a_terminal(stoker, terminal, workdir: Path) -> None:
    piped = stoker("prepare", "mine:source", "-o", "out", "--tokenizer", "300").stdout
    assert "collecting texts: " in piped
    assert "5,000" in piped
    assert (workdir / "out" / "index.json").is_file()
    screen = terminal("prepare", "mine:source", "-o", "again", "--tokenizer", "300")
    output = screen.read()
    assert "collecting texts" in output
    assert "5,000" in output


def test_a_wrong_model_is_reported_in_one_line_by_the_worker(stoker, workdir: Path) -> None:
    (workdir / "bad.py").write_text(
        "from torch import nn\ndef build(shape):\n    return nn.Embedding(shape.vocab, 3)\n"
    )
    line = refusal(stoker, "train", "run.yaml", "model.family=bad:build", "data.tokenizer={train: 300}", "on.workers=2")
    assert "its module returned a float32 tensor of shape [1, 1, 3] for tokens of shape [1, 1]" in line
    assert "Return a float tensor of logits of shape [1, 1, 300]" in line


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_a_failing_callback_ends_the_run_and_the_same_command_resumes_it_once_fixed(
    stoker, workdir: Path, workers: int
) -> None:
    bad = workdir / "bad.py"
    bad.write_text("def note(record):\n    if record['step'] == 3:\n        raise RuntimeError('no room')\n")
    arguments = [*ARGUMENTS, "until.steps=5", "name=own", "callbacks=[bad:note]", f"on.workers={workers}"]
    done = stoker("train", *arguments, code=3)
    (line,) = done.stderr.splitlines()
    assert "the callback bad:note failed in step: RuntimeError: no room (bad.py, line 3)" in line
    assert "the run resumes from step 3" in line
    assert "Traceback" not in done.stdout
    bad.write_text("def note(record): ...\n")
    assert "resumed at step 3" in stoker("train", *arguments).stdout
