"""Our training loop against a Hugging Face Trainer: the same model, data and batch, 2 cores, in one run.

Both train for real, each in its own processes, and take turns: while one trains the other is stopped. A turn gives one
speed from the steps that lie wholly inside it; a pair of turns gives one ratio; the table shows medians.

    python bench/train.py [--case cpu|gpu] [--pairs 5] [--turn 20] [--only bf16]
"""

import argparse
import hashlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stoker.data.shards import Index, Shard


@dataclass(frozen=True)
class Case:
    shape: dict[str, int]
    vocab: int
    sequences: int
    length: int
    words: tuple[str, ...]
    arguments: dict[str, Any]


CASES = {
    "cpu": Case({"layers": 6, "heads": 6, "width": 384}, 8000, 16, 256, ("on.device=cpu",), {"use_cpu": True}),
    "gpu": Case({"layers": 12, "heads": 12, "width": 768, "vocab": 50304}, 50257, 32, 1024, ("on.device=cuda",), {}),
}
SETTINGS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "fp32": (["precision=fp32", "compile=true"], {"torch_compile": True}),
    "bf16": (["precision=bf16", "compile=true"], {"torch_compile": True, "bf16": True}),
    "defaults": ([], {}),
}


@dataclass
class Contestant:
    name: str
    process: subprocess.Popen[bytes]
    times: Path
    tokens_a_step: int

    def steps(self) -> list[float]:
        if not self.times.exists():
            return []
        return [json.loads(line)["time"] for line in self.times.read_text().splitlines() if line.endswith("}")]

    def signal(self, number: int) -> None:
        for pid in _tree(self.process.pid):
            os.kill(pid, number)

    def turn(self, seconds: float) -> float:
        """Train alone for a while; tokens per second over the whole steps in it."""
        self.signal(signal.SIGCONT)
        began = time.time()
        time.sleep(seconds)
        self.signal(signal.SIGSTOP)
        inside = [t for t in self.steps() if t > began][1:]  # the first step was begun in an earlier turn
        if len(inside) < 3:
            sys.exit(f"{self.name} did {len(inside)} steps in a turn of {seconds} s; give it longer turns with --turn")
        return (len(inside) - 1) * self.tokens_a_step / (inside[-1] - inside[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--turn", type=float, default=20)
    parser.add_argument("--only", choices=SETTINGS, action="append")
    parser.add_argument("--case", choices=CASES, default="cpu")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        tokens = _tokens(work / "tokens", CASES[args.case].vocab)
        print(f"{'setting':<10}{'stoker tok/s':>14}{'HF tok/s':>12}{'ratio':>8}   ratios of the pairs")
        for name in args.only or SETTINGS:
            ours, theirs, ratios = compare(name, CASES[args.case], tokens, work, pairs=args.pairs, turn=args.turn)
            shown = " ".join(f"{r:.3f}" for r in ratios)
            print(f"{name:<10}{ours:>14,.0f}{theirs:>12,.0f}{statistics.median(ratios):>8.3f}   {shown}", flush=True)


def compare(
    name: str, case: Case, tokens: Path, work: Path, *, pairs: int, turn: float
) -> tuple[float, float, list[float]]:
    contestants = [_stoker(name, case, tokens, work), _hugging_face(name, case, tokens, work)]
    try:
        for one in contestants:  # warm up: imports, compilation, first steps
            one.signal(signal.SIGCONT)
            while len(one.steps()) < 12:
                if one.process.poll() is not None:
                    sys.exit((work / f"{one.name}.log").read_text()[-3000:])
                time.sleep(0.5)
            one.signal(signal.SIGSTOP)
        speeds = [[one.turn(turn) for one in contestants] for _ in range(pairs)]
    finally:
        for one in contestants:
            one.signal(signal.SIGKILL)
            one.process.wait()
    medians = [statistics.median(column) for column in zip(*speeds, strict=True)]
    return medians[0], medians[1], [ours / theirs for ours, theirs in speeds]


def _tokens(folder: Path, vocab: int) -> Path:
    """Random tokens: the speed of a step does not depend on what they say."""
    (folder / "tokenizer").mkdir(parents=True)
    tokens = np.random.default_rng(0).integers(vocab, size=4_000_000, dtype=np.uint16)
    tokens.tofile(folder / "train-00000.bin")
    shard = Shard(file="train-00000.bin", tokens=len(tokens), sha256=hashlib.sha256(tokens.tobytes()).hexdigest())
    Index(
        key=f"random-{vocab}", dtype="uint16", vocab=vocab, end=0, tokenizer="", trained=None, documents=1,
        bytes=tokens.nbytes, skipped=0, train=[shard],
    ).write(folder)  # fmt: skip
    return folder


def _stoker(name: str, case: Case, tokens: Path, work: Path) -> Contestant:
    words = [f"model.{key}={value}" for key, value in case.shape.items()]
    words += [f"model.context={case.length}", f"batch.length={case.length}", f"batch.sequences={case.sequences}"]
    words += [f"name={name}", f"data={tokens}", "until.steps=100000", "log.every=1", "eval.every=0", "on.workers=1"]
    words += ["checkpoint.every=100000"]  # what saving costs is measured by bench/checkpoint.py
    words += [*case.words, *SETTINGS[name][0]]
    command = [sys.executable, "-m", "stoker", "train", "--runs", str(work / "runs"), *words]
    return _start("stoker", command, work, work / "runs" / name / "metrics.jsonl", case)


def _hugging_face(name: str, case: Case, tokens: Path, work: Path) -> Contestant:
    times = work / f"hf-{name}.jsonl"
    settings = {"tokens": str(tokens), "out": str(work / "hf"), "times": str(times), "shape": case.shape}
    settings |= {"length": case.length, "sequences": case.sequences, "arguments": case.arguments | SETTINGS[name][1]}
    script = Path(__file__).with_name("hf_trainer.py")
    return _start("Hugging Face", [sys.executable, str(script), json.dumps(settings)], work, times, case)


def _start(name: str, command: list[str], work: Path, times: Path, case: Case) -> Contestant:
    log = open(work / f"{name}.log", "wb")  # noqa: SIM115 (handed to the process)
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    time.sleep(1)
    one = Contestant(name, process, times, case.sequences * case.length)
    one.signal(signal.SIGSTOP)
    return one


def _tree(pid: int) -> list[int]:
    """The process and all below it."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += _tree(int(child))
    return found


if __name__ == "__main__":
    main()
