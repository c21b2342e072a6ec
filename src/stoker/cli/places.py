"""Where runs are kept, and where a model lies, as every verb takes them."""

import argparse
from pathlib import Path
from typing import Literal

from stoker.observe.runs import find, is_path
from stoker.spec.errors import UserError
from stoker.storage.mirror import place, run_dir


def runs_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runs",
        type=place,
        default=Path("runs"),
        metavar="DIR",
        help="where runs are kept: a folder, s3://… or gs://… (./runs)",
    )


def path(text: str) -> Path:
    """A name on the command line. An empty one would be the current folder, which nobody means by it."""
    if not text:
        raise UserError("a file or folder has an empty name", remedy="Check the command line")
    return Path(text)


def step_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--step", type=_step, default="newest", metavar="N", help="the checkpoint of that step, or `best` (the newest)"
    )


def trust_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trust", action="store_true", help="execute the code that the run names, though you did not launch it here"
    )


def model_place(word: str, runs: Path) -> Path:
    """The folder of a run, by name or path, of a checkpoint, or of a model that transformers wrote."""
    if word and Path(word).is_dir() and (is_path(word) or not run_dir(runs / word).exists()):
        return Path(word)
    return find(word, runs).path


def _step(text: str) -> int | Literal["newest", "best"]:
    if text == "best":
        return "best"
    if text == "newest":
        return "newest"
    if not text.isdecimal():
        raise UserError(f"--step is {text}", remedy="Give the number of a step, or best")
    return int(text)
