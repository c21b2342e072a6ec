"""Kubernetes objects as YAML that people read: lists of plain words in one line."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from stoker.spec.errors import UserError

Object = dict[str, Any]


class _Dumper(yaml.SafeDumper):
    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        plain = all(isinstance(one, (str, int, float)) for one in sequence)
        return super().represent_sequence(tag, sequence, flow_style=plain or flow_style)

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 (what is said twice is written twice)
        return True


def text(objects: Iterable[Object]) -> str:
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def write(objects: Iterable[Object], folder: Path) -> list[Path]:
    """One file each, numbered in the order they are to be applied."""
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number, one in enumerate(objects, 1):
            path = folder / f"{number}-{one['kind'].lower()}-{one['metadata']['name']}.yaml"
            path.write_text(text([one]))
            written.append(path)
    except OSError as e:
        raise UserError(f"cannot write to {folder}: {e.strerror}", remedy="Name a folder, or a new one") from e
    return written
