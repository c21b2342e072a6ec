"""A user's own scripts: DDP under the supervisor, killed, stopped and resumed."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.rundir import RunDir
from tests.written import events_of

STEPS = 40
TRAIN = """
import os, signal, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

steps = int(sys.argv[1])
run = Path(os.environ["STOKER_RUN_DIR"])
dist.init_process_group("gloo")
rank = dist.get_rank()
(run / f"pid-{os.environ['STOKER_ATTEMPT']}-{rank}").write_text(str(os.getpid()))
print("TOKEN", os.environ.get("TOKEN"), "KEY", os.environ.get("KEY"), "COLOUR", os.environ.get("COLOUR"))
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 1))
saved, first = run / "model.pt", 1
if saved.exists():
    state = torch.load(saved, weights_only=True)
    model.load_state_dict(state["model"])
    first = state["step"] + 1
print(f"rank {rank} begins at step {first}")
stop = torch.zeros(1)
signal.signal(signal.SIGTERM, lambda *_: stop.fill_(1))
for step in range(first, steps + 1):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
    asked = stop.clone()
    dist.all_reduce(asked)
    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}")
        torch.save({"step": step, "model": model.state_dict()}, run / "half.pt")
        os.replace(run / "half.pt", saved)
    if asked:
        break
    time.sleep(0.03)
dist.destroy_process_group()
"""
PLAIN = """
import os, signal, sys, time
from pathlib import Path

rank = os.environ["RANK"]
saved = Path(os.environ["STOKER_RUN_DIR"]) / f"step-{rank}"
print("TOKEN", os.environ.get("TOKEN"), "KEY", os.environ.get("KEY"), "COLOUR", os.environ.get("COLOUR"))
first = int(saved.read_text()) + 1 if saved.exists() else 1
print(f"rank {rank} begins at step {first}")
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
for step in range(first, int(sys.argv[1]) + 1):
    if rank == "0":
        print(f"step {step} loss {1 / step:.4f}")
    saved.write_text(str(step))
    if asked:
        break
    time.sleep(0.03)
"""
RUN_FILE = """\
name: own
script: code/train.py
args: [40]
on: {workers: 2, device: cpu}
env: {COLOUR: blue}
secrets: {TOKEN: env:MY_TOKEN, KEY: file:key}
"""
TOKEN, KEY = "tok-4711-sesame", "key-0815-simsim"


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(TRAIN)
    (tmp_path / "run.yaml").write_text(RUN_FILE)
    (tmp_path / "key").write_text(KEY + "\n")
    (tmp_path / "key").chmod(0o600)
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    return tmp_path


def steps(run: RunDir) -> list[int]:
    return [record["step"] for record in run.metrics()]


def files_with_secrets(run: RunDir) -> list[Path]:
    """The files of a run that hold a secret."""
    secrets = [TOKEN.encode(), KEY.encode()]
    files = [path for path in run.path.rglob("*") if path.is_file()]
    assert run.log(1) in files
    return [path for path in files if any(secret in path.read_bytes() for secret in secrets)]


def log(run: RunDir, rank: int) -> list[str]:
    return [line[25:] for line in run.log(rank).read_text().splitlines()]


def test_a_script_whose_worker_is_killed_finishes_and_shows_no_secret(stoker, workdir: Path, eventually) -> None:
    run = stoker.run("own")
    process = stoker.start("train", str(workdir / "run.yaml"))
    eventually(lambda: len(steps(run)) > 3)
    holder = run.holder()
    supervisor = Path(f"/proc/{holder['pid']}")
    assert TOKEN in (supervisor / "environ").read_text()
    for argv in (supervisor / "cmdline", Path(f"/proc/{process.pid}/cmdline")):
        assert TOKEN not in argv.read_text()
        assert KEY not in argv.read_text()
    os.kill(int((run.path / "pid-1-1").read_text()), signal.SIGKILL)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert "worker 1 was killed by SIGKILL; restarting\n" in output
    assert f"step {STEPS} loss" in output, "what the first worker prints is shown"
    starts = [line for line in log(run, 1) if line.startswith("rank 1 begins at step ")]
    assert len(starts) == 2
    assert int(starts[1].split()[-1]) > 3, "it resumed from its checkpoint"
    assert steps(run) == list(range(1, STEPS + 1))
    assert run.exit().state == "done"
    assert "TOKEN *** KEY *** COLOUR blue" in log(run, 0)
    assert not files_with_secrets(run)
    assert TOKEN not in output
    assert KEY not in output
    status = json.loads(stoker("status", "own", "--json").stdout)
    assert (status["state"], status["step"], status["restarts"], status["workers"]) == ("done", STEPS, 1, 2)
    assert status["loss"] == run.metrics()[-1]["loss"]
    second = stoker("train", "run.yaml").stdout
    assert "run 'own' is done" in second
    assert "until" not in second


@pytest.fixture
def launched(stoker, workdir: Path) -> Iterator[RunDir]:
    (workdir / "code" / "train.py").write_text(PLAIN)
    record = json.loads(stoker("launch", str(workdir / "run.yaml"), "args=[100000]", "--json").stdout)
    run = RunDir(Path(record["folder"]))
    yield run
    if (holder := run.holder()) and holder["pid"]:
        os.kill(holder["pid"], signal.SIGKILL)


def test_a_script_in_the_background_is_stopped_and_resumed(
    stoker, command, workdir: Path, launched: RunDir, eventually
) -> None:
    run = launched
    eventually(lambda: len(steps(run)) > 3)
    assert run.name in command("ps").stdout
    assert "running" in command("status", run.name).stdout
    assert "step 3 loss" in command("logs", run.name).stdout
    stopped = stoker("stop", run.name).stdout
    assert "paused" in stopped
    reached = steps(run)[-1]
    assert (run.exit().state, run.exit().code, run.exit().step) == ("paused", 75, reached)
    (workdir / "key").write_text("another-key-0816")
    stoker("launch", run.name)
    eventually(lambda: steps(run)[-1] > reached + 3)
    stoker("stop", run.name)
    assert f"rank 0 begins at step {reached + 1}" in log(run, 0)
    assert log(run, 0).count("TOKEN *** KEY *** COLOUR blue") == 2
    assert not files_with_secrets(run)
    assert not [path for path in run.path.rglob("*.log") if b"another-key" in path.read_bytes()]
    assert [event["kind"] for event in events_of(run)] == ["world", "stopping"] * 2


@pytest.mark.parametrize(
    ("text", "arguments", "problem"),
    [
        ("print(1)", ["script=gone.py"], "gone.py cannot be read: No such file or directory. Check the path"),
        ("def (", [], "train.py:1 is not Python"),
        ("import nothere_at_all", [], "train.py needs the module nothere_at_all, which is not installed. Install it"),
        ("import beside", [], "beside.py, line 1"),
        ("print(1)", ["secrets.TOKEN=env:NOT_SET_AT_ALL"], "variable NOT_SET_AT_ALL, which is not set. Set it with"),
        ("print(1)", ["secrets.KEY=file:gone"], "gone, which cannot be read"),
        ("print(1)", ["secrets.KEY=sesame"], "secrets.KEY has no source"),
        ("print(1)", ["until.steps=3"], "a script sets that itself"),
    ],
)
def test_bad_input_is_one_line_with_a_remedy(
    command, workdir: Path, text: str, arguments: list[str], problem: str
) -> None:
    (workdir / "code" / "train.py").write_text(text)
    (workdir / "code" / "beside.py").write_text("def (")
    done = command("train", "run.yaml", *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    assert problem in line
    assert "Traceback" not in done.stdout or "import" in text
    run = RunDir(workdir / "runs" / "own")
    assert sum(event["kind"] == "world" for event in events_of(run)) == (1 if text.startswith("imp") else 0)
    assert run.exists() is text.startswith("imp"), "no run is created if it cannot start"
    assert "sesame" not in done.stdout + done.stderr.replace("=sesame", "")


def test_warnings_about_secrets_are_shown_without_their_values(command, workdir: Path) -> None:
    (workdir / "key").chmod(0o644)
    for verb in ("train", "launch"):
        output = command(verb, "run.yaml", "--dry-run").stdout
        assert f"secrets.KEY: other users can read {workdir / 'key'}. Run: chmod 600" in output
        assert "code/train.py 40" in output
        assert KEY not in output
        assert TOKEN not in output
    assert not (workdir / "runs").exists()


def test_a_name_of_another_kind_of_run_is_refused(stoker, workdir: Path, books: Path) -> None:
    (workdir / "code" / "train.py").write_text("print('hello')")
    stoker("train", "run.yaml")
    arguments = [f"data.path={books}", "name=own", "until.steps=1", "data.tokenizer.train=300"]
    (line,) = stoker("train", *arguments, code=2).stderr.splitlines()
    assert "what it runs: script" in line
    assert "--new" in line


def test_a_script_has_the_same_output_in_a_terminal_and_in_a_pipe(stoker, workdir: Path, terminal) -> None:
    text = "import os\nif os.environ['RANK'] == '0': print('hello\\x1b[31m'); print('step 1 loss 2')"
    (workdir / "code" / "train.py").write_text(text)
    piped = stoker("train", "run.yaml", "name=piped").stdout.splitlines()
    command = terminal("train", "run.yaml", "name=shown")
    screen_lines = command.read().split("\r\n")
    assert command.process.wait() == 0
    for line in (r"hello\x1b[31m", "step 1 loss 2"):
        assert line in piped
        assert any(shown_line.endswith(line) for shown_line in screen_lines)
    assert any(line.startswith("  state       done at step 1") for line in screen_lines)
