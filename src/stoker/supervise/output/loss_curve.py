"""Reads the loss curve of a script from the lines that it prints.

Supported are the Hugging Face Trainer, DeepSpeed, nanoGPT, the PyTorch tutorials, the BERT and FSDP samples of AWS, and
any other line that names a step and a loss: `step 10 … loss 2.3`.
"""

import re
import time
from contextlib import suppress

from stoker.rundir import Record, RunDir
from stoker.rundir.records import LAST_STEP

MAX_LINE_CHARS = 16 * 1024  # a longer line is not parsed
NUMBER = r"([-+]?(?:\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})(?:e[-+]?\d{1,4})?|[-+]?(?:nan|inf)\b)"
ASSIGN = r"\s{0,8}[:=]?\s{0,8}"

COLOUR_CODES = re.compile(r"\x1b\[[\d;]{0,20}m")
PAIR = re.compile(rf"""['"](\w{{1,40}})['"]\s{{0,4}}:\s{{0,4}}['"]?{NUMBER}['"]?\s{{0,4}}[,}}]""", re.IGNORECASE)
STEP = re.compile(
    r"(?<![\w.])(?:global[ _]?step|step|iteration|iter|batch)\s{0,4}[:=#]?\s{0,8}\[?\s{0,8}(\d{1,15})(?![\w]|\.\d)",
    re.IGNORECASE,
)
EPOCH_AND_STEP = re.compile(r"\((\d{1,9}), ?(\d{1,15})\) step_loss", re.IGNORECASE)
EPOCH = re.compile(rf"(?<![\w.])epoch\s{{0,4}}[:=#]?\s{{0,8}}\[?\s{{0,4}}{NUMBER}", re.IGNORECASE)
LOSS = re.compile(
    r"(?<![\w.])(?:(val|valid|validation|eval|test|dev)[ _-]|(?:train|training|step)[ _-])?"
    rf"loss\b{ASSIGN}(?:tensor\()?{NUMBER}",
    re.IGNORECASE,
)
SAMPLES_DONE = re.compile(r"loss[^\[]{1,60}\[\s{0,12}\d{1,15}/\d{1,15}\]", re.IGNORECASE)
SKIPPED = re.compile(r"(?<![\w.])skipped=(\d{1,15})\b")
VALUES = {
    "lr": re.compile(rf"(?<![\w.])(?:lr|learning[_ ]rate){ASSIGN}\[?{NUMBER}", re.IGNORECASE),
    "grad_norm": re.compile(rf"(?<![\w.])(?:grad[ _-]?norm|norm){ASSIGN}{NUMBER}", re.IGNORECASE),
    "samples_per_second": re.compile(rf"(?<![\w.])(?:speed|throughput){ASSIGN}{NUMBER}(?! ?tok)", re.IGNORECASE),
    "tokens_per_second": re.compile(rf"(?<!\w)tok(?:ens)?(?:/|_per_)s(?:ec(?:ond)?)?{ASSIGN}{NUMBER}", re.IGNORECASE),
}
KEYS = {
    "step": "step", "global_step": "step", "iter": "step", "iteration": "step", "epoch": "epoch",
    "loss": "loss", "eval_loss": "val_loss", "val_loss": "val_loss", "learning_rate": "lr", "lr": "lr",
    "grad_norm": "grad_norm", "tokens_per_second": "tokens_per_second", "samples_per_second": "samples_per_second",
}  # fmt: skip


def parse(line: str) -> Record | None:
    """The metrics in a line, by the names of metrics.jsonl; None for any other line. The step may be missing."""
    if len(line) > MAX_LINE_CHARS:
        return None
    line = COLOUR_CODES.sub("", line)
    return _parse_dict(line) or _parse_text(line)


class LossCurve:
    """Writes the metrics that rank 0 prints to metrics.jsonl. A loss without a step belongs to the next step."""

    def __init__(self, run: RunDir, *, world: int) -> None:
        self._run = run
        self._world = world
        self._step = last_step(run) or 0
        self._last: Record | None = None
        self.started = False
        """Whether this attempt has printed a step."""

    def add(self, lines: bytes) -> None:
        if not _may_have_metrics(lines):
            return
        for line in lines.split(b"\n"):
            if _may_have_metrics(line) and (metrics := parse(line.decode(errors="replace"))):
                self.started = True
                with suppress(OSError):  # a full disk costs points of the curve, not the run
                    self._run.add_metrics(self._record(metrics))

    def _record(self, metrics: Record) -> Record:
        """Merges lines of one step: DeepSpeed prints the step in one line, the Trainer its loss in the next."""
        is_next_step = "loss" in metrics and (self._last is None or "loss" in self._last)
        step = metrics.get("step", self._step + is_next_step)
        earlier = self._last if self._last and step == self._step else {}
        self._step = step
        self._last = {"step": step, **earlier, "time": time.time(), **metrics, "world": self._world}
        return self._last


def last_step(run: RunDir) -> int | None:
    """The newest step in metrics.jsonl. A script may write lines of its own there, and these need not have a step."""
    return next((int(record["step"]) for record in run.metrics_backwards()), None)


def _may_have_metrics(lines: bytes) -> bool:
    return b"oss" in lines or b"skipped=" in lines  # Loss, loss; much faster than the patterns


def _parse_dict(line: str) -> Record | None:
    """{'loss': 2.3, 'learning_rate': 1e-4, 'epoch': 0.7}"""
    if "{" not in line:
        return None
    metrics = {KEYS[key]: float(value) for key, value in PAIR.findall(line) if key in KEYS}
    if "loss" not in metrics and "val_loss" not in metrics:
        return None
    step = metrics.pop("step", -1.0)
    return metrics | ({"step": int(step)} if 0 <= step <= LAST_STEP else {})  # not nan or inf


def _parse_text(line: str) -> Record | None:
    metrics: Record = {}
    if match := EPOCH_AND_STEP.search(line):
        metrics |= {"epoch": float(match[1]), "step": int(match[2])}
    if match := EPOCH.search(line):
        metrics["epoch"] = float(match[1])
    if match := STEP.search(line):
        metrics["step"] = int(match[1])
    for name, value in reversed(LOSS.findall(line)):  # the first of a kind counts
        metrics["val_loss" if name else "loss"] = float(value)
    if match := SKIPPED.search(line):
        metrics["skipped"] = int(match[1])
    has_loss = "loss" in metrics or "val_loss" in metrics
    has_position = "step" in metrics or "epoch" in metrics or SAMPLES_DONE.search(line)
    if not (has_loss and has_position) and not ("skipped" in metrics and "step" in metrics):
        return None
    return metrics | {key: float(match[1]) for key, pattern in VALUES.items() if (match := pattern.search(line))}
