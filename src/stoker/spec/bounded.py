"""JSON and YAML from a source that is not trusted: size, depth and numbers are limited before any value is built.

A few lines of YAML aliases can expand to billions of values, brackets can nest deeper than Python can walk, and a
number of a million digits takes minutes to convert. JSON beyond a limit is a ValueError, YAML a yaml.YAMLError.
"""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from stoker.spec.errors import UserError
from stoker.spec.files import read_regular

MAX_BYTES = 16 << 20
MAX_DEPTH = 64
MAX_DIGITS = 20  # enough for 64 bits; every such number also fits a float
MAX_YAML_NODES = (
    50_000  # values and keys, an alias counts as the nodes that it refers to; PyYAML reads about 20,000 a second
)
MAX_YAML_DIGITS = 40

_OPENINGS = re.compile(r'"(?:[^"\\]++|\\(?:.|\Z))*+(?:"|\Z)|[\[{]|[\]}]', re.DOTALL)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(
    data: str | bytes, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH, max_digits: int = MAX_DIGITS
) -> Any:
    """The value, which is safe to walk recursively, to convert to float and to write as UTF-8."""
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
    value = json.loads(text, parse_int=integer if long else None, parse_float=_finite, parse_constant=_refuse_constant)
    if _SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode()  # half a character raises UnicodeEncodeError, a ValueError
    return value


def read_json(path: Path, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> Any:
    """Raises ValueError, and OSError when the file cannot be opened."""
    return parse_json(read_regular(path, max_bytes=max_bytes), max_bytes=max_bytes, max_depth=max_depth)


class BoundedLoader(yaml.SafeLoader):
    """PyYAML's safe loader with limits."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._nodes = 0
        self._depth = 0
        self._sizes: dict[str, int] = {}  # anchor -> number of nodes that an alias of it refers to

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        anchor, mark = event.anchor, event.start_mark
        if isinstance(event, yaml.AliasEvent):
            if anchor in self.anchors and anchor not in self._sizes:
                raise yaml.composer.ComposerError(None, None, "an alias contains itself", mark)
            self._nodes += self._sizes.get(anchor, 0)
        before = self._nodes
        self._nodes += 1
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, f"it is nested deeper than {MAX_DEPTH} levels", mark)
        if self._nodes > MAX_YAML_NODES:
            raise yaml.composer.ComposerError(None, None, f"it holds more than {MAX_YAML_NODES:,} values", mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if anchor is not None and not isinstance(event, yaml.AliasEvent):
            self._sizes[anchor] = self._nodes - before
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        kind = node.tag.rpartition(":")[2]
        if kind in ("int", "float") and isinstance(node, yaml.ScalarNode) and len(node.value) > MAX_YAML_DIGITS:
            raise _constructor_error(node, f"a number of {len(node.value)} characters is too long")
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError, OverflowError) as e:  # such as of `!!int x`
            value = node.value if isinstance(node, yaml.ScalarNode) else "this"
            raise _constructor_error(node, f"{value!r} is no {kind}") from e


def parse_yaml_documents(text: str, name: str) -> list[Any]:
    """Every document of a YAML text, as plain values. Messages call the text `name`."""
    try:
        return [value for value in yaml.load_all(text, BoundedLoader) if value is not None]
    except yaml.YAMLError as e:
        raise yaml_error(e, name) from e


def yaml_error(error: yaml.YAMLError, name: str) -> UserError:
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    line = f":{mark.line + 1}" if mark else ""
    return UserError(
        f"{name}{line}: not YAML: {yaml_reason(error)}", remedy="Fix that line" if mark else "Fix the file"
    )


def yaml_reason(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError):
        return ", ".join(part for part in (error.context, error.problem) if part)
    return str(error).splitlines()[0]


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


def _refuse_constant(name: str) -> None:
    raise ValueError(f"it has {name}, which is not JSON")


def _constructor_error(node: yaml.Node, problem: str) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
