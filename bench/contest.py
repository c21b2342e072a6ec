"""Two trainings take turns on one machine: while one trains, the other is stopped, so both have the same noise."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from processes import tree
from stoker.data.shards import Index, Shard
from stoker.supervise.parent_death import die_with_parent

WARM_UP_STEPS = 12


@dataclass(frozen=True)
class Contestant:
    name: str
    process: subprocess.Popen[bytes]
    times: Path
    """JSON lines, one per step, with its end time."""
    log: Path

    def steps(self) -> list[float]:
        if not self.times.exists():
            return []
        return [json.loads(line)["time"] for line in self.times.read_text().splitlines() if line.endswith("}")]

    def warm_up(self) -> None:
        """Imports, compilation, first steps."""
        self.turn(seconds=0, steps=WARM_UP_STEPS)

    def turn(self, *, seconds: float, steps: int) -> list[float]:
        """Train alone for at least this long and this many steps. Return the end times of the steps within the turn."""
        began = time.time()

        def done() -> bool:
            return len(inside()) > steps and time.time() - began >= seconds

        def inside() -> list[float]:
            return [t for t in self.steps() if t > began][1:]  # the first step started in an earlier turn

        self._wake_until(done)
        return inside()

    def reach(self, step: int) -> tuple[float, float]:
        """Train alone until this step is done. Return start and end time."""
        began = time.time()
        self._wake_until(lambda: len(self.steps()) >= step)
        return began, time.time()

    def _wake_until(self, done: Callable[[], bool]) -> None:
        self.signal(signal.SIGCONT)
        while not done():
            time.sleep(0.1)
            if self.process.poll() is not None:
                sys.exit(f"{self.name} ended:\n{self.log.read_text()[-3000:]}")
        self.signal(signal.SIGSTOP)

    def signal(self, number: int) -> None:
        for pid in tree(self.process.pid):
            with suppress(ProcessLookupError):  # it has ended
                os.kill(pid, number)

    def end(self) -> None:
        if self.process.poll() is None:  # the PID of a process that was waited for may belong to another one
            self.signal(signal.SIGKILL)
            self.process.wait()


def start(name: str, command: list[str], *, times: Path, log: Path) -> Contestant:
    """Start the process and stop it at once; its first turn continues it. It dies with this process."""
    me = os.getpid()
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with open(log, "wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, env=environment, preexec_fn=lambda: die_with_parent(me)
        )
    contestant = Contestant(name, process, times, log)
    contestant.signal(signal.SIGSTOP)
    return contestant


def start_stoker(name: str, overrides: list[str], work: Path) -> Contestant:
    common = [f"name={name}", "until.steps=100000", "log.every=1", "eval.every=0", "on.workers=1"]
    command = [sys.executable, "-m", "stoker", "train", "--runs", str(work / "runs"), *common, *overrides]
    return start("stoker", command, times=work / "runs" / name / "metrics.jsonl", log=work / f"{name}.log")


def random_tokens(folder: Path, vocab: int) -> Path:
    """A random token set. The speed of a step does not depend on the content."""
    (folder / "tokenizer").mkdir(parents=True)
    tokens = np.random.default_rng(0).integers(vocab, size=4_000_000, dtype=np.uint16)
    tokens.tofile(folder / "train-00000.bin")
    shard = Shard(file="train-00000.bin", tokens=len(tokens), sha256=hashlib.sha256(tokens.tobytes()).hexdigest())
    Index(
        key=f"random-{vocab}", dtype="uint16", vocab=vocab, end=0, tokenizer="", trained=None, documents=1,
        bytes=tokens.nbytes, skipped=0, train=[shard],
    ).write(folder)  # fmt: skip
    return folder
