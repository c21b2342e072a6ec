"""YAML from a source that is not trusted: what it may grow to is limited before any of it is built.

A few lines of aliases of aliases stand for billions of values, a row of brackets nests deeper than Python can walk, and
a number of a million digits takes minutes to convert. Each is a yaml.YAMLError here, raised while the text is read.
"""

from typing import Any

import yaml

from stoker.spec.errors import UserError

MOST_NODES = 50_000  # values and keys, each alias counted as what it stands for; PyYAML reads some 20,000 a second
MOST_DEPTH = 64
MOST_DIGITS = 40  # of a number


class BoundedLoader(yaml.SafeLoader):
    """PyYAML's safe loader within the limits."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._nodes = 0
        self._depth = 0
        self._sizes: dict[str, int] = {}  # anchor -> nodes that an alias of it stands for

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        anchor, mark = event.anchor, event.start_mark
        if isinstance(event, yaml.AliasEvent):
            if anchor in self.anchors and anchor not in self._sizes:
                raise yaml.composer.ComposerError(None, None, "an alias holds itself", mark)
            self._nodes += self._sizes.get(anchor, 0)
        before = self._nodes
        self._nodes += 1
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise yaml.composer.ComposerError(None, None, f"it is nested deeper than {MOST_DEPTH} levels", mark)
        if self._nodes > MOST_NODES:
            raise yaml.composer.ComposerError(None, None, f"it holds more than {MOST_NODES:,} values", mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if anchor is not None and not isinstance(event, yaml.AliasEvent):
            self._sizes[anchor] = self._nodes - before
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        kind = node.tag.rpartition(":")[2]
        if kind in ("int", "float") and isinstance(node, yaml.ScalarNode) and len(node.value) > MOST_DIGITS:
            raise _refused(node, f"a number of {len(node.value)} characters is too long")
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError, OverflowError) as e:  # such as of `!!int x`
            value = node.value if isinstance(node, yaml.ScalarNode) else "this"
            raise _refused(node, f"{value!r} is no {kind}") from e


def load_all(text: str, name: str) -> list[Any]:
    """Every document of a text, as plain values. `name` is what messages call the text."""
    try:
        return [value for value in yaml.load_all(text, BoundedLoader) if value is not None]
    except yaml.YAMLError as e:
        raise not_yaml(e, name) from e


def not_yaml(error: yaml.YAMLError, name: str) -> UserError:
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    line = f":{mark.line + 1}" if mark else ""
    return UserError(f"{name}{line}: not YAML: {reason(error)}", remedy="Fix that line" if mark else "Fix the file")


def reason(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError):
        return ", ".join(part for part in (error.context, error.problem) if part)
    return str(error).splitlines()[0]


def _refused(node: yaml.Node, problem: str) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
