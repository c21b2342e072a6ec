"""Arguments that several verbs share: the folder of the runs, a run file with overrides, a model, a step."""

import argparse
import os
from pathlib import Path
from typing import Literal

from stoker.observe.runs import find, is_path
from stoker.rundir.commands import default_runs
from stoker.spec.errors import UserError
from stoker.storage.mirror import place, run_dir


def runs_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runs",
        type=place,
        default=default_runs(),
        metavar="DIR",
        help="where runs are kept: a folder, s3://… or gs://… (STOKER_RUNS, or ./runs)",
    )


def path(text: str) -> Path:
    """A path on the command line. An empty one, which Path would take for the current folder, is refused."""
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


def model_path(name: str, runs: Path) -> Path:
    """The folder of a run (by name or path), of a checkpoint, or of a model that transformers wrote."""
    if name and Path(name).is_dir() and (is_path(name) or not run_dir(runs / name).exists()):
        return Path(name)
    return find(name, runs).path


def file_and_overrides(arguments: list[str], *, verb: str) -> tuple[str | None, list[str]]:
    """The run file or run, if one is named, and the key=value overrides."""
    if not arguments:
        raise UserError(
            f"{verb} needs a run file",
            remedy=f"Write: stoker {verb} RUN.yaml. If you have none, create one with: stoker init DATA",
        )
    if "" in arguments:
        raise UserError("an argument is empty", remedy=f"Write: stoker {verb} RUN.yaml key=value")
    files = [argument for argument in arguments if "=" not in argument or os.path.isfile(argument)]
    if len(files) > 1:
        raise UserError(f"{files[1]} is a second run file", remedy="Give one, and the rest as key=value")
    return files[0] if files else None, [argument for argument in arguments if argument not in files]


def _step(text: str) -> int | Literal["newest", "best"]:
    if text == "best":
        return "best"
    if text == "newest":
        return "newest"
    if not text.isdecimal():
        raise UserError(f"--step is {text}", remedy="Give the number of a step, or best")
    return int(text)
