"""Kubernetes objects as readable YAML: lists of plain values on one line."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from stoker.spec.errors import UserError

Object = dict[str, Any]


class _ManifestDumper(yaml.SafeDumper):
    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        plain = all(isinstance(value, (str, int, float)) for value in sequence)
        return super().represent_sequence(tag, sequence, flow_style=plain or flow_style)

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 (repeated values are written out)
        return True


def text(objects: Iterable[Object]) -> str:
    return yaml.dump_all(objects, Dumper=_ManifestDumper, sort_keys=False, allow_unicode=True, width=120)


def write(objects: Iterable[Object], folder: Path) -> list[Path]:
    """One file for each object, numbered in the order in which they are applied."""
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number, manifest in enumerate(objects, 1):
            path = folder / f"{number}-{manifest['kind'].lower()}-{manifest['metadata']['name']}.yaml"
            path.write_text(text([manifest]))
            written.append(path)
    except OSError as e:
        raise UserError(f"cannot write to {folder}: {e.strerror}", remedy="Name another folder") from e
    return written
