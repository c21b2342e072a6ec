"""Formats numbers, times and tables for people. A terminal gets colours; a pipe and a log file get plain text."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from stoker.cli.screen import own, printable

__all__ = ["printable"]

INDENT = 14  # columns before the value of a pair
COLOURS = {"running": 32, "done": 36, "failed": 31}  # ANSI: green, cyan, red
COLOURS |= dict.fromkeys(("paused", "interrupted", "waiting", "restarting", "stopping", "unknown"), 33)  # yellow
CLEAR = "\x1b[H\x1b[2J"  # move the cursor to the top left, and clear the screen


def size(value: float) -> str:
    """Bytes: 16 GiB"""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.3g} {unit}" if value < 100 else f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def moment(seconds: float) -> str:
    """Seconds since 1970 as local time: 2026-11-15 04:57:26"""
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M:%S}"


def loss(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def measured(value: float | None) -> str:
    """A loss of metrics.jsonl, where null stands for NaN and infinity."""
    return "not finite" if value is None else f"{value:.4f}"


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    """One line for each: a name and its value."""
    return "\n".join(f"  {name} ".ljust(INDENT) + text for name, text in rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, states: int | None = None) -> str:
    """`states`: the column with states, which are coloured."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = []
    for row in (head, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        if states is not None:
            cells[states] = painted(cells[states])
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def is_plain() -> bool:
    """Whether to print no colours and control sequences: not a terminal, or the user wants none."""
    return not sys.stdout.isatty() or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


def painted(text: str) -> str:
    """A state in its colour; any other text unchanged."""
    colour = COLOURS.get(text.strip())
    return text if colour is None or is_plain() else own(f"\x1b[{colour}m") + text + own("\x1b[0m")


def repeat(frame: Callable[[], str | None], *, seconds: float) -> None:
    """Print a new frame every `seconds` until there is none: in place of the last one in a terminal, else below it."""
    while (text := frame()) is not None:
        print(text if is_plain() else own(CLEAR) + text, flush=True)
        time.sleep(seconds)


def terminal_lines() -> int | None:
    """Height of the terminal; None if the output is not a terminal."""
    return None if is_plain() else shutil.get_terminal_size().lines
