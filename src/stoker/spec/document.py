"""A YAML file as plain values, with the line number of every key.

Scalars are those of YAML 1.2: only true and false are booleans (so `on:` stays a key), `1e-4` is a number, a date is
text. A duplicate key is refused: a reader sees the first, a loader would use the last.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from stoker.spec.bounded import BoundedLoader, yaml_error, yaml_reason
from stoker.spec.errors import UserError
from stoker.spec.files import read_text

KeyPath = tuple[str, ...]

MAX_SHOWN = 80  # characters of a value in a message
TAG_PREFIX = "tag:yaml.org,2002:"


@dataclass(frozen=True, kw_only=True, slots=True)
class YamlDocument:
    values: dict[str, Any]
    lines: dict[KeyPath, int]


def read_document(path: Path, *, kind: str = "run file", example: str = "data: ./books") -> YamlDocument:
    return parse_document(_read(path), str(path), kind=kind, example=example)


def parse_document(text: str, name: str, *, kind: str = "run file", example: str = "data: ./books") -> YamlDocument:
    """`name` is what messages call the text, `kind` the kind of file, `example` a line of such a file."""
    try:
        root, loader = _compose(text)
        if root is None:
            return YamlDocument(values={}, lines={})
        if not isinstance(root, yaml.MappingNode):
            raise UserError(f"{name} is not a {kind}: it has no keys", remedy=f"Write lines such as {example}")
        lines: dict[KeyPath, int] = {}
        return YamlDocument(values=_Plain(loader, name, lines).value(root, ()), lines=lines)
    except yaml.YAMLError as e:
        raise yaml_error(e, name) from e


def parse_value(text: str, name: str) -> Any:
    """The value of a `key=value` override: YAML if it starts with a bracket, a brace or a quote, else one scalar."""
    try:
        if not text.startswith(("[", "{", '"', "'")):
            return _scalar(text)
        root, loader = _compose(text)
        return _Plain(loader, name, {}).value(root, ()) if root else None
    except yaml.YAMLError as e:
        shown = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
        raise UserError(
            f"{name}: {shown} is not YAML: {yaml_reason(e)}",
            remedy="Close its brackets and quotes, and quote it for the shell",
        ) from e


def is_plain_text(value: str) -> bool:
    """Whether a run file reads this as text when it is written without quotes: not `2024`, `true` or `1e-4`."""
    return _scalar_tag(value) == f"{TAG_PREFIX}str"


class _Loader(BoundedLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's own form)


NUMBER = r"[-+]?((\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)"
for tag, pattern, first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9]*)", list("-+0123456789")),  # 007 and 10_000 stay text: the field decides
    ("float", rf"{NUMBER}|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(f"{TAG_PREFIX}{tag}", re.compile(rf"^(?:{pattern})$"), first)


TAGS = {f"{TAG_PREFIX}{kind}" for kind in ("null", "bool", "int", "float", "str")}


class _Plain:
    def __init__(self, loader: _Loader, name: str, lines: dict[KeyPath, int]) -> None:
        self.loader, self.name, self.lines = loader, name, lines

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, str(i))) for i, item in enumerate(node.value)]
        if node.tag not in TAGS:
            raise yaml.constructor.ConstructorError(None, None, f"the tag {node.tag} is not supported", node.start_mark)
        return self.loader.construct_object(node)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise UserError(
                    f"{self.name}:{line}: a key must be plain text", remedy="Write lines such as data: ./books"
                )
            key = key_node.value
            if key in values:
                first = self.lines[(*path, key)]
                raise UserError(
                    f"{self.name}:{line}: {'.'.join((*path, key))} is set twice, first in line {first}",
                    remedy="Keep one of them",
                )
            self.lines[(*path, key)] = line
            values[key] = self.value(value_node, (*path, key))
        return values


def _compose(text: str) -> tuple[yaml.Node | None, _Loader]:
    loader = _Loader(text)
    return loader.get_single_node(), loader


def _scalar(text: str) -> Any:
    return _Loader("").construct_object(yaml.ScalarNode(_scalar_tag(text), text))


def _scalar_tag(text: str) -> str:
    tag: str = _Loader("").resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    return tag


def _read(path: Path) -> str:
    try:
        return read_text(path)
    except FileNotFoundError:
        raise UserError(
            f"there is no file {path}", remedy="Check the path, or create one with: stoker init DATA"
        ) from None
    except IsADirectoryError:
        raise UserError(
            f"{path} is a folder, not a run file", remedy=f"Name the file, such as {path / 'run.yaml'}"
        ) from None
    except UnicodeDecodeError as e:
        raise UserError(f"{path} is not UTF-8 text (byte {e.start})", remedy="Save it as UTF-8") from e
    except OSError as e:
        raise UserError(f"cannot read {path}: {e.strerror}", remedy="Check the path and its permissions") from e
