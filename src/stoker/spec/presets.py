"""Presets: model sizes and whole recipes, as YAML files in `stoker/presets/`."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from stoker.spec.document import Document, read_document
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
    document: Document
    """What it says, without the description."""


@cache
def presets(kind: Kind) -> dict[str, Preset]:
    return {path.stem: _read(path, kind) for path in sorted((FOLDER / f"{kind}s").glob("*.yaml"))}


def preset(kind: Kind, name: str, *, where: str) -> Preset:
    """`where` is the place that names it, for the message when there is none."""
    known = presets(kind)
    if name not in known:
        near = nearest(name, list(known))
        remedy = f"Did you mean {near}?" if near else f"Take one of {', '.join(known)}"
        raise UserError(f"{where}: there is no {kind} preset '{name}'", remedy=f"{remedy} (stoker presets shows them)")
    return known[name]


def presets_of_both_kinds(name: str | None = None) -> list[Preset]:
    """All of them, or those of that name: a model and a recipe for it may share one."""
    known = [*presets("model").values(), *presets("run").values()]
    if name is None:
        return known
    found = [one for one in known if one.name == name]
    if not found:
        near = nearest(name, [one.name for one in known])
        raise UserError(
            f"there is no preset '{name}'", remedy=f"Did you mean {near}?" if near else "See: stoker presets"
        )
    return found


def _read(path: Path, kind: Kind) -> Preset:
    document = read_document(path)
    values = dict(document.values)
    return Preset(
        name=path.stem,
        kind=kind,
        description=values.pop("description"),
        path=path,
        document=Document(values=values, lines=document.lines),
    )
