"""A YAML file as plain values, with the line of every key.

YAML 1.2's scalars: only true and false are booleans (so `on:` stays a key), `1e-4` is a number, a date is text. A key
said twice is refused: the reader of the file sees the first, the loader would take the last.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from stoker.spec.bounded_yaml import BoundedLoader, not_yaml, reason
from stoker.spec.errors import UserError
from stoker.spec.regular import read_text

KeyPath = tuple[str, ...]

SHOWN = 80  # characters of a value in a message


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    values: dict[str, Any]
    lines: dict[KeyPath, int]


def read_document(path: Path) -> Document:
    return parse_document(_read(path), str(path))


def parse_document(text: str, name: str) -> Document:
    """`name` is what messages call the text."""
    try:
        root, loader = _compose(text)
        if root is None:
            return Document(values={}, lines={})
        if not isinstance(root, yaml.MappingNode):
            raise UserError(
                f"{name}: this is no run file: it holds no keys", remedy="Write lines such as data: ./books"
            )
        lines: dict[KeyPath, int] = {}
        return Document(values=_Plain(loader, name, lines).value(root, ()), lines=lines)
    except yaml.YAMLError as e:
        raise not_yaml(e, name) from e


def parse_value(text: str, name: str) -> Any:
    """The value of a `key=value` word: YAML where it opens a list, a mapping or quotes, else one scalar."""
    try:
        if not text.startswith(("[", "{", '"', "'")):
            return _scalar(text)
        root, loader = _compose(text)
        return _Plain(loader, name, {}).value(root, ()) if root else None
    except yaml.YAMLError as e:
        shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
        raise UserError(
            f"{name}: {shown} is not YAML: {reason(e)}", remedy="Close what it opens, and quote it for the shell"
        ) from e


class _Loader(BoundedLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's own form)


NUMBER = r"[-+]?((\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)"
for tag, pattern, first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9]*)", list("-+0123456789")),  # 007 and 10_000 stay text, for the field to judge
    ("float", rf"{NUMBER}|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(rf"^(?:{pattern})$"), first)


TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str")}


class _Plain:
    def __init__(self, loader: _Loader, name: str, lines: dict[KeyPath, int]) -> None:
        self.loader, self.name, self.lines = loader, name, lines

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, str(i))) for i, item in enumerate(node.value)]
        if node.tag not in TAGS:
            raise yaml.constructor.ConstructorError(None, None, f"{node.tag} means nothing here", node.start_mark)
        return self.loader.construct_object(node)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise UserError(f"{self.name}:{line}: a key must be a word", remedy="Write lines such as data: ./books")
            key = key_node.value
            if key in found:
                first = self.lines[(*path, key)]
                raise UserError(
                    f"{self.name}:{line}: {'.'.join((*path, key))} is said twice, first in line {first}",
                    remedy="Keep one of them",
                )
            self.lines[(*path, key)] = line
            found[key] = self.value(value_node, (*path, key))
        return found


def _compose(text: str) -> tuple[yaml.Node | None, _Loader]:
    loader = _Loader(text)
    return loader.get_single_node(), loader


def _scalar(text: str) -> Any:
    loader = _Loader("")
    tag = loader.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    return loader.construct_object(yaml.ScalarNode(tag, text))


def _read(path: Path) -> str:
    try:
        return read_text(path)
    except FileNotFoundError:
        raise UserError(
            f"there is no file {path}", remedy="Check the path, or write one with: stoker init DATA"
        ) from None
    except IsADirectoryError:
        raise UserError(
            f"{path} is a folder, not a run file", remedy=f"Name the file, such as {path / 'run.yaml'}"
        ) from None
    except UnicodeDecodeError as e:
        raise UserError(f"{path} is not UTF-8 text (byte {e.start})", remedy="Save it as UTF-8") from e
    except OSError as e:
        raise UserError(f"cannot read {path}: {e.strerror}", remedy="Check the path and its permissions") from e
