"""Human units: counts (10k, 2.5M), durations (90s, 2h, 1d12h), sizes (5GB, 16GiB) and shares (2%)."""

import re
from decimal import Decimal
from typing import Annotated

from pydantic import BeforeValidator

COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
LARGEST = 2**63 - 1  # what a machine counts with
MOST = 10**15  # of steps, tokens, bytes: beyond what any run can reach, and within what every part can count to
SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}


def count(value: object) -> object:
    """`10k` -> 10000. What is neither text nor a number goes on to the type check as it is."""
    if isinstance(value, float) and value.is_integer():
        return _within(int(value))
    if not isinstance(value, str):
        return _within(value) if isinstance(value, int) and number(value) is value else value
    found = re.fullmatch(r"([0-9][0-9_]*(?:\.[0-9]+)?(?:[eE]\+?[0-9]{1,3})?)\s*([kKmMbBgGtT]?)", value.strip())
    if not found:
        raise ValueError(f"'{value}' is not a count; write a whole number such as 10000, 10k or 2.5M")
    exact = Decimal(found[1].replace("_", "")) * COUNTS[found[2].lower()]  # 1.15M is whole, in floats it is not
    if exact != int(exact):
        raise ValueError(f"'{value}' is not a whole number; write one such as 10000, 10k or 2.5M")
    return _within(int(exact))


def duration(value: object) -> object:
    """`1h30m` -> 5400.0 seconds. A bare number is seconds."""
    if not isinstance(value, str):
        return number(value)
    text = value.strip().lower()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        return float(text)
    if not re.fullmatch(r"([0-9]+(\.[0-9]+)?\s*(min|[smhdw])\s*)+", text):
        raise ValueError(f"'{value}' is not a duration; write it as 90s, 45m, 2h or 1d12h")
    return sum(float(n) * SECONDS[unit] for n, _, unit in re.findall(r"([0-9]+(\.[0-9]+)?)\s*(min|[smhdw])", text))


def size(value: str) -> int:
    """`5GB` -> 5000000000 bytes, `1GiB` -> 1073741824. A bare number is bytes."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([kmgt]?)(i?)b?)", value.strip().lower())
    if not found or (found[3] and not found[2]):
        raise ValueError(f"'{value}' is not a size; write it as 500MB, 5GB or 16GiB")
    return int(Decimal(found[1]) * (1024 if found[3] else 1000) ** " kmgt".index(found[2] or " "))


def share(value: object) -> object:
    """`2%` -> 0.02. A bare number stays what it is."""
    if not isinstance(value, str):
        return number(value)
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(%?)", value.strip())
    if not found:
        raise ValueError(f"'{value}' is not a share; write it as 2% or 0.02")
    return float(Decimal(found[1]) / (100 if found[2] else 1))


def number(value: object) -> object:
    """true is no number, though Python counts with it."""
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is not a number; write a number")
    return value


def text(value: object) -> object:
    """A name may look like a number: `name: 2024`. A file's name and a variable hold no zero byte."""
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError("it has a zero byte; take it out")
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise ValueError("it is not UTF-8 text; rename what it names, or convert it")
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _within(value: int) -> int:
    if abs(value) > LARGEST:
        raise ValueError(f"{value} is too large; write at most {MOST:,}")
    return value


Count = Annotated[int, BeforeValidator(count)]
Seconds = Annotated[float, BeforeValidator(duration)]
Share = Annotated[float, BeforeValidator(share)]
Number = Annotated[float, BeforeValidator(number)]
Text = Annotated[str, BeforeValidator(text)]
