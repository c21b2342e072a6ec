"""Human units: counts (10k, 2.5M), durations (90s, 2h, 1d12h), sizes (5GB, 16GiB) and shares (2%)."""

import re
from decimal import Decimal
from typing import Annotated

from pydantic import BeforeValidator

COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
LARGEST = 2**63 - 1  # a 64-bit integer
MAX_COUNT = 10**15  # of steps, tokens, bytes: more than any run needs
SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}


def count(value: object) -> object:
    """`10k` -> 10000. Other types are left to the type check."""
    if isinstance(value, float) and value.is_integer():
        return _within(int(value))
    if not isinstance(value, str):
        return _within(value) if isinstance(value, int) and number(value) is value else value
    match = re.fullmatch(r"([0-9][0-9_]*(?:\.[0-9]+)?(?:[eE]\+?[0-9]{1,3})?)\s*([kKmMbBgGtT]?)", value.strip())
    if not match:
        raise ValueError(f"'{value}' is not a count; write a whole number such as 10000, 10k or 2.5M")
    exact = Decimal(match[1].replace("_", "")) * COUNTS[match[2].lower()]  # 1.15M is whole, in floats it is not
    if exact != int(exact):
        raise ValueError(f"'{value}' is not a whole number; write one such as 10000, 10k or 2.5M")
    return _within(int(exact))


def duration(value: object) -> object:
    """`1h30m` -> 5400.0 seconds. A plain number is seconds."""
    if not isinstance(value, str):
        return number(value)
    text = value.strip().lower()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        return float(text)
    if not re.fullmatch(r"([0-9]+(\.[0-9]+)?\s*(min|[smhdw])\s*)+", text):
        raise ValueError(f"'{value}' is not a duration; write it as 90s, 45m, 2h or 1d12h")
    return sum(float(n) * SECONDS[unit] for n, _, unit in re.findall(r"([0-9]+(\.[0-9]+)?)\s*(min|[smhdw])", text))


def size(value: str) -> int:
    """`5GB` -> 5000000000 bytes, `1GiB` -> 1073741824. A plain number is bytes."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([kmgt]?)(i?)b?)", value.strip().lower())
    if not match or (match[3] and not match[2]):
        raise ValueError(f"'{value}' is not a size; write it as 500MB, 5GB or 16GiB")
    return int(Decimal(match[1]) * (1024 if match[3] else 1000) ** " kmgt".index(match[2] or " "))


def share(value: object) -> object:
    """`2%` -> 0.02. A plain number stays as it is."""
    if not isinstance(value, str):
        return number(value)
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(%?)", value.strip())
    if not match:
        raise ValueError(f"'{value}' is not a share; write it as 2% or 0.02")
    return float(Decimal(match[1]) / (100 if match[2] else 1))


def number(value: object) -> object:
    """Refuses true and false, which Python accepts as numbers."""
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is not a number; write a number")
    return value


def short_number(value: float) -> str:
    """1234567 -> 1.23M"""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{value:,.0f}"


def short_duration(seconds: float) -> str:
    """3723 -> 1h02m"""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def text(value: object) -> object:
    """A name may look like a number: `name: 2024`. File names and variables must not contain a zero byte."""
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError("it has a zero byte; remove it")
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise ValueError("it is not UTF-8 text; rename the file, or convert the text")
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _within(value: int) -> int:
    if abs(value) > LARGEST:
        raise ValueError(f"{value} is too large; write at most {MAX_COUNT:,}")
    return value


Count = Annotated[int, BeforeValidator(count)]
Seconds = Annotated[float, BeforeValidator(duration)]
Share = Annotated[float, BeforeValidator(share)]
Number = Annotated[float, BeforeValidator(number)]
Text = Annotated[str, BeforeValidator(text)]
