"""Presets: model sizes and complete run files, as YAML in `stoker/presets/`."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from stoker.spec.document import YamlDocument, read_document
from stoker.spec.errors import UserError
from stoker.spec.keys import nearest

FOLDER = Path(__file__).parent.parent / "presets"
Kind = Literal["model", "run"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    name: str
    kind: Kind
    description: str
    path: Path
    document: YamlDocument
    """Without the description."""


@cache
def presets(kind: Kind) -> dict[str, Preset]:
    return {path.stem: _read(path, kind) for path in sorted((FOLDER / f"{kind}s").glob("*.yaml"))}


def preset(kind: Kind, name: str, *, where: str) -> Preset:
    """`where`: the place that names it, for error messages."""
    known = presets(kind)
    if name not in known:
        near = nearest(name, list(known))
        remedy = f"Did you mean {near}?" if near else f"Use one of {', '.join(known)}"
        raise UserError(f"{where}: there is no {kind} preset '{name}'", remedy=f"{remedy} (stoker presets lists them)")
    return known[name]


def presets_of_both_kinds(name: str | None = None) -> list[Preset]:
    """All presets, or those of that name: a model and a run may have the same name."""
    known = [*presets("model").values(), *presets("run").values()]
    if name is None:
        return known
    matches = [preset for preset in known if preset.name == name]
    if not matches:
        near = nearest(name, [preset.name for preset in known])
        raise UserError(
            f"there is no preset '{name}'", remedy=f"Did you mean {near}?" if near else "See: stoker presets"
        )
    return matches


def _read(path: Path, kind: Kind) -> Preset:
    document = read_document(path)
    values = dict(document.values)
    return Preset(
        name=path.stem,
        kind=kind,
        description=values.pop("description"),
        path=path,
        document=YamlDocument(values=values, lines=document.lines),
    )
