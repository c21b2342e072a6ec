"""Loss curves of scripts, read from the lines that they print.

Known are the lines of the Hugging Face Trainer, of DeepSpeed, of nanoGPT, of the PyTorch tutorials and of the BERT and
FSDP samples of AWS, and whatever else names a step and a loss: `step 10 … loss 2.3`.
"""

import re
import time
from contextlib import suppress

from stoker.rundir import Record, RunDir

LONGEST = 16 * 1024  # characters of a line that is looked at
NUMBER = r"([-+]?(?:\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})(?:e[-+]?\d{1,4})?|[-+]?(?:nan|inf)\b)"
IS = r"\s{0,8}[:=]?\s{0,8}"

COLOURS = re.compile(r"\x1b\[[\d;]{0,20}m")
PAIR = re.compile(rf"""['"](\w{{1,40}})['"]\s{{0,4}}:\s{{0,4}}['"]?{NUMBER}['"]?\s{{0,4}}[,}}]""", re.IGNORECASE)
STEP = re.compile(
    r"(?<![\w.])(?:global[ _]?step|step|iteration|iter|batch)\s{0,4}[:=#]?\s{0,8}\[?\s{0,8}(\d{1,15})(?![\w]|\.\d)",
    re.IGNORECASE,
)
EPOCH_AND_STEP = re.compile(r"\((\d{1,9}), ?(\d{1,15})\) step_loss", re.IGNORECASE)
EPOCH = re.compile(rf"(?<![\w.])epoch\s{{0,4}}[:=#]?\s{{0,8}}\[?\s{{0,4}}{NUMBER}", re.IGNORECASE)
LOSS = re.compile(
    r"(?<![\w.])(?:(val|valid|validation|eval|test|dev)[ _-]|(?:train|training|step)[ _-])?"
    rf"loss\b{IS}(?:tensor\()?{NUMBER}",
    re.IGNORECASE,
)
SAMPLES_DONE = re.compile(r"loss[^\[]{1,60}\[\s{0,12}\d{1,15}/\d{1,15}\]", re.IGNORECASE)
SKIPPED = re.compile(r"(?<![\w.])skipped=(\d{1,15})\b")
FIGURES = {
    "lr": re.compile(rf"(?<![\w.])(?:lr|learning[_ ]rate){IS}\[?{NUMBER}", re.IGNORECASE),
    "grad_norm": re.compile(rf"(?<![\w.])(?:grad[ _-]?norm|norm){IS}{NUMBER}", re.IGNORECASE),
    "samples_per_second": re.compile(rf"(?<![\w.])(?:speed|throughput){IS}{NUMBER}(?! ?tok)", re.IGNORECASE),
    "tokens_per_second": re.compile(rf"(?<!\w)tok(?:ens)?(?:/|_per_)s(?:ec(?:ond)?)?{IS}{NUMBER}", re.IGNORECASE),
}
KEYS = {
    "step": "step", "global_step": "step", "iter": "step", "iteration": "step", "epoch": "epoch",
    "loss": "loss", "eval_loss": "val_loss", "val_loss": "val_loss", "learning_rate": "lr", "lr": "lr",
    "grad_norm": "grad_norm", "tokens_per_second": "tokens_per_second", "samples_per_second": "samples_per_second",
}  # fmt: skip


def parse(line: str) -> Record | None:
    """What a line says of a step, by our names; None when it is of no known form. It may say no step."""
    if len(line) > LONGEST:
        return None
    line = COLOURS.sub("", line)
    return _pairs(line) or _words(line)


class Curve:
    """Writes what rank 0 says of its steps to metrics.jsonl. A line without a step is one more step."""

    def __init__(self, run: RunDir, *, world: int) -> None:
        self._run = run
        self._world = world
        self._step = last_step(run) or 0
        self._last: Record | None = None
        self.begun = False
        """Whether this attempt has shown a step."""

    def hear(self, lines: bytes) -> None:
        if not _may_tell(lines):
            return
        for line in lines.split(b"\n"):
            if _may_tell(line) and (said := parse(line.decode(errors="replace"))):
                self.begun = True
                with suppress(OSError):  # a full disk costs points of the curve, not the run
                    self._run.add_metrics(self._record(said))

    def _record(self, said: Record) -> Record:
        """DeepSpeed tells the step in one line, the Trainer its loss in the next: what is of one step goes together."""
        one_more = "loss" in said and (self._last is None or "loss" in self._last)
        step = said.get("step", self._step + one_more)
        before = self._last if self._last and step == self._step else {}
        self._step = step
        self._last = {"step": step, **before, "time": time.time(), **said, "world": self._world}
        return self._last


def last_step(run: RunDir) -> int | None:
    """The step that was told last. A script may have written lines of its own, and they need not name one."""
    return next((int(record["step"]) for record in run.metrics_backwards()), None)


def _may_tell(lines: bytes) -> bool:
    return b"oss" in lines or b"skipped=" in lines  # Loss, loss; far quicker than the patterns


def _pairs(line: str) -> Record | None:
    """{'loss': 2.3, 'learning_rate': 1e-4, 'epoch': 0.7}"""
    if "{" not in line:
        return None
    said = {KEYS[key]: float(value) for key, value in PAIR.findall(line) if key in KEYS}
    if "loss" not in said and "val_loss" not in said:
        return None
    return said | ({"step": int(said["step"])} if "step" in said else {})


def _words(line: str) -> Record | None:
    said: Record = {}
    if found := EPOCH_AND_STEP.search(line):
        said |= {"epoch": float(found[1]), "step": int(found[2])}
    if found := EPOCH.search(line):
        said["epoch"] = float(found[1])
    if found := STEP.search(line):
        said["step"] = int(found[1])
    for name, value in reversed(LOSS.findall(line)):  # the first of a kind counts
        said["val_loss" if name else "loss"] = float(value)
    if found := SKIPPED.search(line):
        said["skipped"] = int(found[1])
    told = "loss" in said or "val_loss" in said
    placed = "step" in said or "epoch" in said or SAMPLES_DONE.search(line)
    if not (told and placed) and not ("skipped" in said and "step" in said):
        return None
    return said | {key: float(found[1]) for key, figure in FIGURES.items() if (found := figure.search(line))}
