"""What `stoker env` shows of a worker, and what it hides."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.backends.local.environment import HIDDEN, is_secret, worker_environment
from stoker.rundir import RunDir
from stoker.spec.run import ScriptSpec

ENVIRONMENT = {
    "RANK": "1",
    "HF_TOKEN": "hf_abcdefgh",
    "WEIRD": "s3cr3t-value",
    "MESSAGE": "it said s3cr3t-value twice: s3cr3t-value",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI",
    "PROXY": "http://user:pa55word@proxy:3128",
    "TOKENIZERS_PARALLELISM": "false",
    "PLAIN": "shown",
    "PATH": os.environ["PATH"],
}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "runs/demo")
    run.create(ScriptSpec(name="demo", script="train.py", secrets={"WEIRD": "env:WEIRD"}), None)
    return run


@pytest.fixture
def worker(run: RunDir) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)", "--key=s3cr3t-value"]
    environment = ENVIRONMENT | {"STOKER_RUN_DIR": str(run.path)}
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()


def test_the_environment_of_the_worker_is_shown_without_secrets(run: RunDir, worker: subprocess.Popen[bytes]) -> None:
    shown = worker_environment(run, 1)
    assert shown.pid == worker.pid
    for name in ("HF_TOKEN", "WEIRD", "AWS_SECRET_ACCESS_KEY"):
        assert shown.environment[name] == HIDDEN
    assert shown.environment["MESSAGE"] == f"it said {HIDDEN} twice: {HIDDEN}"
    assert shown.environment["PROXY"] == f"http://user:{HIDDEN}@proxy:3128"
    assert shown.environment["PLAIN"] == "shown"
    assert shown.environment["TOKENIZERS_PARALLELISM"] == "false"
    assert shown.command[-1] == f"--key={HIDDEN}"
    everything = repr(shown)
    for secret in ("hf_abcdefgh", "s3cr3t-value", "wJalrXUtnFEMI", "pa55word"):
        assert secret not in everything
    assert shown.versions["torch"]
    assert int(shown.limits["open files"]) > 0
    assert any(mount["path"] == "/" for mount in shown.mounts)


def test_without_a_worker_of_that_rank_the_machine_is_described(run: RunDir, worker: subprocess.Popen[bytes]) -> None:
    shown = worker_environment(run, 0)
    assert shown.pid is None
    assert shown.environment == {}
    assert shown.versions["python"]
    assert worker.poll() is None


def test_the_verb_prints_it(run: RunDir, worker: subprocess.Popen[bytes]) -> None:
    argv = [sys.executable, "-m", "stoker", "env", str(run.path), "--rank", "1"]
    done = subprocess.run([*argv, "--json"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["pid"] == worker.pid
    text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert "  PLAIN         shown\n" in text
    assert "  TOKENIZERS_PARALLELISM false\n" in text
    assert "s3cr3t-value" not in text


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "WANDB_API_KEY", "DB_PASSWORD", "AWS_ACCESS_KEY_ID", "my_secret", "APIKEY"]
)
def test_names_of_secrets_are_recognized(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ["PATH", "TOKENIZERS_PARALLELISM", "MONKEY", "PASSES", "RANK", "COMPASS_SIZE"])
def test_other_names_are_not_taken_for_secrets(name: str) -> None:
    assert not is_secret(name)
