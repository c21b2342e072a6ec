"""Human units: counts (10k, 2.5M), sizes (16GiB), durations (90s, 2h, 1d12h) and shares (2%)."""

import re
from typing import Annotated

from pydantic import BeforeValidator

COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}


def count(value: object) -> object:
    """`10k` -> 10000. Anything that is not text goes on to the type check as it is."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"([0-9][0-9_]*(?:\.[0-9]+)?(?:[eE]\+?[0-9]+)?)\s*([kKmMbBgGtT]?)", value.strip())
    if not found:
        raise ValueError(f"'{value}' is not a count; write a whole number such as 10000, 10k or 2.5M")
    number = float(found[1].replace("_", "")) * COUNTS[found[2].lower()]
    if not number.is_integer():
        raise ValueError(f"'{value}' is not a whole number")
    return int(number)


def duration(value: object) -> object:
    """`1h30m` -> 5400.0 seconds. A bare number is seconds."""
    if not isinstance(value, str):
        return value
    text = value.strip().lower()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        return float(text)
    if not re.fullmatch(r"([0-9]+(\.[0-9]+)?\s*(min|[smhdw])\s*)+", text):
        raise ValueError(f"'{value}' is not a duration; write it as 90s, 45m, 2h or 1d12h")
    return sum(float(n) * SECONDS[unit] for n, _, unit in re.findall(r"([0-9]+(\.[0-9]+)?)\s*(min|[smhdw])", text))


def share(value: object) -> object:
    """`2%` -> 0.02. A bare number stays what it is."""
    if isinstance(value, str) and (found := re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*%", value.strip())):
        return float(found[1]) / 100
    return value


Count = Annotated[int, BeforeValidator(count)]
Seconds = Annotated[float, BeforeValidator(duration)]
Share = Annotated[float, BeforeValidator(share)]
