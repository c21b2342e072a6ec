"""Numbers, times and columns as people read them. Plain text: a terminal, a pipe and a log file show the same."""

from collections.abc import Iterable, Sequence

INDENT = 14  # columns before the text of a pair


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


def loss(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def measured(value: float | None) -> str:
    """A loss as metrics.jsonl has it: null is one that was NaN or infinite."""
    return "not finite" if value is None else f"{value:.4f}"


def printable(text: str) -> str:
    """Text from elsewhere, without what could move the cursor or change a terminal's colours."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    """One line each: a name, then what there is to say."""
    return "\n".join(f"  {name}".ljust(INDENT) + text for name, text in rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows)]
    return "\n".join(line.rstrip() for line in lines)
