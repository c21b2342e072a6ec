"""What `stoker launch` says of a run, wherever that is."""

import json
import shlex
from pathlib import Path

from stoker.cli import output
from stoker.rundir import Record, RunDir


def as_json(run: RunDir, facts: Record) -> str:
    return json.dumps({"name": run.name, "folder": str(run.path)} | facts)


def started(run: RunDir, where: str, *, watch: tuple[str, ...]) -> str:
    """`watch` are commands, with {} for the run."""
    word = run.name if run.path == Path("runs", run.name).absolute() else shlex.quote(str(run.path))
    rows = [
        ("started", f"{run.name}, {where}"),
        ("folder", str(run.path)),
        ("watch", "  ·  ".join(command.format(word) for command in watch)),
        ("stop", f"stoker stop {word}"),
    ]
    return output.pairs(rows)
