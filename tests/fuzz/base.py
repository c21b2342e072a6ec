"""Valid input that the cases change: text in every format, a token set, a trained run, an exported model."""

import csv
import gzip
import json
import os
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from stoker.api.opening import begin
from stoker.cli.main import main, report_error
from stoker.rundir import RunDir
from stoker.spec.contract import ENV_ATTEMPT
from stoker.spec.errors import StokerError
from stoker.spec.load import load
from stoker.train.__main__ import main as work
from tests.ports import free_port

TINY = [
    "name=tale", "model.layers=1", "model.heads=2", "model.width=16", "model.context=16", "batch.sequences=2",
    "batch.length=16", "precision=fp32", "compile=false", "checkpoint.every=2", "log.every=1", "eval.every=2",
    "eval.sequences=2", "optim.warmup=1", "optim.lr=1e-3", "on.device=cpu", "on.workers=1", "log.tensorboard=false",
    "until.steps=4",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Base:
    folder: Path

    @property
    def run(self) -> Path:
        return self.folder / "runs" / "tale"

    @property
    def tokens(self) -> Path:
        return self.folder / "tokens"

    @property
    def export(self) -> Path:
        return self.folder / "export"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def overrides(self) -> list[str]:
        return [f"data={self.tokens}", *TINY]


def make(folder: Path) -> Base:
    """Create the input in forks, so that this process has no threads when it forks again."""
    base = Base(folder=folder)
    if base.export.exists():
        return base
    base.data.mkdir(parents=True)
    _write_data(base.data)
    argv = ["prepare", str(base.data / "book.txt"), "-o", str(base.tokens), "--tokenizer", "300", "--validation", "5%"]
    _forked(folder, lambda: main([*argv, "--workers", "1"]))
    _forked(folder, lambda: worker(begin(load(None, base.overrides()).spec, runs=folder / "runs").run))
    _forked(folder, lambda: main(["export", str(base.run), "-o", str(base.export)]))
    return base


def worker(run: RunDir) -> int:
    """Train as the only worker, as `python -m stoker.train` does."""
    variables: dict[str, object] = {
        "RANK": 0,
        "LOCAL_RANK": 0,
        "WORLD_SIZE": 1,
        "LOCAL_WORLD_SIZE": 1,
        ENV_ATTEMPT: run.next_attempt(),
    }
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port("127.0.0.1")}
    os.environ.update({name: str(value) for name, value in variables.items()})
    try:
        with run.lock():  # as its supervisor does
            return work(run)
    except StokerError as e:
        return report_error(e)


def _forked(folder: Path, call: Callable[[], int]) -> None:
    pid = os.fork()
    if not pid:
        code = 99
        try:
            os.chdir(folder)
            log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            code = call()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == 0, (folder / "log").read_text()


def _write_data(folder: Path) -> None:
    draw = random.Random(1)
    lines = [f"It was day {i}, and the {draw.choice(['sea', 'sky', 'crew'])} was calm." for i in range(400)]
    text = "\n".join(lines) + "\n"
    records = "".join(json.dumps({"text": line, "id": i}) + "\n" for i, line in enumerate(lines))
    (folder / "book.txt").write_text(text)
    (folder / "book.jsonl").write_text(records)
    (folder / "book.json").write_text(json.dumps({"data": [{"text": line} for line in lines]}))
    with open(folder / "book.csv", "w", newline="") as file:
        csv.writer(file).writerows([("id", "text"), *enumerate(lines)])
    pq.write_table(pa.table({"id": list(range(len(lines))), "text": lines}), folder / "book.parquet")
    (folder / "book.txt.gz").write_bytes(gzip.compress(text.encode()))
    (folder / "book.jsonl.zst").write_bytes(zstandard.compress(records.encode()))
    with h5py.File(folder / "book.hdf5", "w") as file:
        rows = np.ones((8, 16), dtype=np.int32)
        for name in ("input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids"):
            file[name] = rows
        file["next_sentence_labels"] = np.zeros(8, dtype=np.int8)
