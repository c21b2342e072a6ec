"""Numbers, times and columns as people read them. A terminal adds colours; a pipe and a log file get plain text."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from stoker.cli.screen import own, printable

__all__ = ["printable"]

INDENT = 14  # columns before the text of a pair
COLOURS = {"running": 32, "done": 36, "failed": 31}  # ANSI: green, cyan, red
COLOURS |= dict.fromkeys(("paused", "interrupted", "waiting", "restarting", "stopping", "unknown"), 33)  # yellow
CLEAR = "\x1b[H\x1b[2J"  # to the top left, and wipe the screen


def number(value: float) -> str:
    """1234567 -> 1.23M"""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{value:,.0f}"


def size(value: float) -> str:
    """Bytes: 16 GiB"""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.3g} {unit}" if value < 100 else f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def duration(seconds: float) -> str:
    """3723 -> 1h02m"""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def moment(seconds: float) -> str:
    """Since 1970, in the time of this place: 2026-11-15 04:57:26"""
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M:%S}"


def loss(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def measured(value: float | None) -> str:
    """A loss as metrics.jsonl has it: null is one that was NaN or infinite."""
    return "not finite" if value is None else f"{value:.4f}"


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    """One line each: a name, then what there is to say."""
    return "\n".join(f"  {name} ".ljust(INDENT) + text for name, text in rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, states: int | None = None) -> str:
    """`states`: the column that holds states, which have colours of their own."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = []
    for row in (head, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        if states is not None:
            cells[states] = painted(cells[states])
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def is_plain() -> bool:
    """Whether what is printed ends up where control characters are noise, or somebody wants none."""
    return not sys.stdout.isatty() or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


def painted(text: str) -> str:
    """A state in its colour; any other text as it is."""
    colour = COLOURS.get(text.strip())
    return text if colour is None or is_plain() else own(f"\x1b[{colour}m") + text + own("\x1b[0m")


def repeat(frame: Callable[[], str | None], *, seconds: float) -> None:
    """Show it anew every `seconds`, until there is none: over the last one in a terminal, else below it."""
    while (text := frame()) is not None:
        print(text if is_plain() else own(CLEAR) + text, flush=True)
        time.sleep(seconds)


def room() -> int | None:
    """Lines that a terminal holds; None where nothing scrolls away."""
    return None if is_plain() else shutil.get_terminal_size().lines
