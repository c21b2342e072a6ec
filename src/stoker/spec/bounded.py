"""JSON and small files from a source that is not trusted: every read has a limit.

A limit that is exceeded is a ValueError, as is text that is not JSON; reading a file raises OSError too.
"""

import errno
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

MAX_BYTES = 16 << 20
MAX_DEPTH = 64
MAX_DIGITS = 20  # enough for 64 bits; every such number also fits a float

_OPENINGS = re.compile(r'"(?:[^"\\]++|\\(?:.|\Z))*+(?:"|\Z)|[\[{]|[\]}]', re.DOTALL)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(
    data: str | bytes, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH, max_digits: int = MAX_DIGITS
) -> Any:
    """The value, which can be walked recursively, converted to float and written as UTF-8 without surprises."""
    if len(data) > max_bytes:
        raise ValueError(f"it has more than {max_bytes:,} bytes")
    text = data.decode() if isinstance(data, bytes) else data
    if _is_deeper(text, max_depth):
        raise ValueError(f"it is nested deeper than {max_depth} levels")

    def integer(digits: str) -> int:
        if len(digits.lstrip("-")) > max_digits:
            raise ValueError(f"it has an integer of more than {max_digits} digits")
        return int(digits)

    long = re.search(rf"\d{{{max_digits + 1}}}", text)
    value = json.loads(text, parse_int=integer if long else None, parse_float=_finite, parse_constant=_refuse)
    if _SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode()  # half a character raises UnicodeEncodeError, a ValueError
    return value


def read_json(path: Path, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> Any:
    return parse_json(read_file(path, max_bytes=max_bytes), max_bytes=max_bytes, max_depth=max_depth)


def read_file(path: Path, *, max_bytes: int = MAX_BYTES) -> bytes:
    """All of a regular file. A FIFO or a device is refused without waiting for it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as e:
        raise ValueError("it is not a regular file") if e.errno == errno.ENXIO else e from e  # a socket
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("it is not a regular file")
    with open(descriptor, "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"it has more than {max_bytes:,} bytes")
    return data


def _is_deeper(text: str, max_depth: int) -> bool:
    if text.count("[") + text.count("{") <= max_depth:
        return False
    depth = 0
    for match in _OPENINGS.finditer(text):
        mark = match[0]
        depth += 1 if mark in ("[", "{") else -1 if mark in ("]", "}") else 0
        if depth > max_depth:
            return True
    return False


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError("it has a number too large for a float")
    return value


def _refuse(name: str) -> None:
    raise ValueError(f"it has {name}, which is not JSON")
