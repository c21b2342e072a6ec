"""Presets, file and `key=value` words -> RunSpec, strictly, with a note of who said what.

Each layer overrules the one before: defaults, `base:` (a run preset or another file, which may have a base of its own),
the file, the words. A model preset counts as said by the layer that names it, before that layer's own `model` keys. A
run's name is not inherited from a base: two files with one base are two runs.
"""

import glob
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from stoker.spec.code import is_code
from stoker.spec.document import KeyPath, parse_value, read_document
from stoker.spec.errors import UserError
from stoker.spec.keys import OWN_KEYS, flat, keys, sections
from stoker.spec.presets import preset
from stoker.spec.problems import explain_problem, unknown_key
from stoker.spec.run import AnySpec, RunSpec, ScriptSpec

SHORTHANDS = {"model": "preset", "data": "path", "init": "path", "objective": "kind", "on": "kind"}
"""What a section means when it is given a plain value: `model: gpt2-small`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where a value was said."""

    kind: Literal["default", "model preset", "run preset", "file", "command line", "python"]
    name: str = ""
    line: int | None = None

    def __str__(self) -> str:
        if self.kind == "file":
            return f"{self.name}:{self.line}" if self.line else self.name
        return f"{self.kind} {self.name}".rstrip()


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    key: str
    value: Any
    origin: Origin
    written: Any = None
    """A path as it was written; `value` is absolute."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    spec: AnySpec
    said: dict[str, list[Said]]
    """Dotted key -> all that was said about it, the winner first; the default, where there is one, comes last."""

    @property
    def training(self) -> RunSpec:
        """Where only a run of one of our models makes sense."""
        if isinstance(self.spec, ScriptSpec):
            raise UserError(f"{self.origins['script']}: script is not for this verb", remedy="Take it out")
        return self.spec

    @property
    def launchable(self) -> AnySpec:
        """The spec. Refuses a script on this machine that nothing brings to the pods of a cluster."""
        spec, script = self.spec, self.said["script"][0] if "script" in self.said else None
        if script is None or spec.on.kind == "local" or spec.on.registry:
            return spec
        if not os.path.isabs(script.written):
            raise UserError(
                f"{script.origin}: script {script.written} is a file on this machine, and on.image is used as it is: "
                "nothing brings the script to the pods",
                remedy="Set on.registry=…, where an image with the script is pushed to; or write the path that the "
                "script has in the image, such as script: /app/train.py",
            )
        return spec

    @property
    def origins(self) -> dict[str, Origin]:
        return {key: said[0].origin for key, said in self.said.items()}


def load(file: Path | AnySpec | None, overrides: Sequence[str]) -> Loaded:
    """The spec that a run file, or one made in Python, and `key=value` words describe.

    Relative paths in words and in what was made in Python are relative to this folder.
    """
    words, base = _words(overrides)
    if isinstance(file, AnySpec):
        layers = _base(base, Path(), Origin(kind="command line"), ()) if base else []
        made = file.model_dump(mode="json", exclude_unset=True)
        layers += _Layer(lambda _: Origin(kind="python"), Path()).said(made)
        name, file = file.name, None
    elif file is not None:
        layers = _file(file, base=base, inside=())
        name = _name_of(file)
    else:
        layers = _base(base, Path(), Origin(kind="command line"), ()) if base else []
        name = clean_name(Path(base).stem) if base else "run"
    said: dict[str, list[Said]] = {}
    for one in [*layers, *words]:
        said.setdefault(one.key, []).insert(0, one)
    said.setdefault("name", []).append(Said(key="name", value=name, origin=Origin(kind="default")))
    try:
        spec = _kind(said).model_validate(_nested({key: said[key][0].value for key in said}))
    except ValidationError as e:
        raise explain_problem(e, {key: (one[0].value, str(one[0].origin)) for key, one in said.items()}, file) from e
    return Loaded(spec=spec, said=_with_defaults(said, spec))


def _kind(said: dict[str, list[Said]]) -> type[AnySpec]:
    """A script or a model of ours: what belongs to the other would be of no effect."""
    kind: type[AnySpec] = ScriptSpec if "script" in said else RunSpec
    for key, sayings in said.items():
        if key.partition(".")[0] not in kind.model_fields:
            why = "a script brings its own" if kind is ScriptSpec else "there is no script to give them to"
            raise UserError(f"{sayings[0].origin}: {key} has no effect: {why}", remedy=f"Take {key} or script out")
    return kind


def clean_name(name: str) -> str:
    """The nearest to it that a run can be called."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:100] or "run"


def _with_defaults(said: dict[str, list[Said]], spec: AnySpec) -> dict[str, list[Said]]:
    found: dict[str, list[Said]] = {}
    for key in flat(spec):
        found[key] = said.get(key, [])
        field = keys().get(key)
        if field is not None and key != "name" and not field.is_required():
            default = Said(key=key, value=field.default, origin=Origin(kind="default"))
            found[key] = [*found[key], default]
    return found


def _file(path: Path, *, base: str | None = None, inside: tuple[Path, ...]) -> list[Said]:
    """What a file says, after what its base says. `base` overrules the file's own, as any word does."""
    real = Path(os.path.realpath(path))  # Path.resolve fails on links that form a circle
    if real in inside:
        raise UserError(f"{path} is its own base", remedy="Break the circle: take base: out of one of the files")
    inside = (*inside, real)
    document = read_document(path)
    values = dict(document.values)
    named = values.pop("base", None)

    def origin(key: KeyPath) -> Origin:
        while key and key not in document.lines:
            key = key[:-1]
        return Origin(kind="file", name=str(path), line=document.lines.get(key))

    if base is not None:
        layers = _base(base, Path(), Origin(kind="command line"), inside)
    elif named is not None:
        layers = _base(named, path.parent, origin(("base",)), inside)
    else:
        layers = []
    return layers + _Layer(origin, path.parent).said(values)


def _base(base: object, folder: Path, origin: Origin, inside: tuple[Path, ...]) -> list[Said]:
    if not isinstance(base, str):
        raise UserError(
            f"{origin}: base is no name", remedy="Write a preset's name or a file, such as base: gpt2-small"
        )
    if base.endswith((".yaml", ".yml")) or "/" in base:
        path = folder / Path(base).expanduser()
        if not path.exists():
            raise UserError(f"{origin}: base names {path}, and there is no such file", remedy="Check the path")
        layers = _file(path, inside=inside)
    else:
        layers = _preset("run", base, str(origin))
    return [one for one in layers if one.key != "name"]


def _preset(kind: Literal["model", "run"], name: str, where: str) -> list[Said]:
    found = preset(kind, name, where=where)
    values = found.document.values if kind == "run" else {"model": found.document.values}
    origin = Origin(kind="run preset" if kind == "run" else "model preset", name=name)
    layers = []
    if "base" in values:
        values = dict(values)
        layers = _base(values.pop("base"), found.path.parent, origin, ())
    return layers + _Layer(lambda _: origin, Path()).said(values)


def _words(overrides: Sequence[str]) -> tuple[list[Said], str | None]:
    """What the words say, and the base among them."""
    said: list[Said] = []
    base: str | None = None
    layer = _Layer(lambda _: Origin(kind="command line"), Path())
    for word in overrides:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise UserError(f"'{word}' is not of the form key=value", remedy="Write words such as until.steps=1000")
        if any("\ud800" <= character <= "\udfff" for character in word):  # bytes of the command line that are no UTF-8
            raise UserError(f"{key}: it is not UTF-8 text", remedy="Rename what it names, or convert it")
        if key == "base":
            base = text
            continue
        path, value = tuple(key.split(".")), parse_value(text, "command line")
        known = next((n for n in range(len(path), 0, -1) if ".".join(path[:n]) in keys()), 0)
        at = ".".join(path[:known])
        if at in OWN_KEYS and len(path) > 1:
            path, value = (at, key.removeprefix(f"{at}.")), text  # a variable is text, whatever it looks like
        elif known and at not in sections():
            value, path = _wrap(path[known:], value), path[:known]  # data.tokenizer.train=4000
        said += layer.at(path, value)
    return _presets_first(said), base


class _Layer:
    """One mapping of keys taken apart into what it says of each."""

    def __init__(self, origin: Callable[[KeyPath], Origin], folder: Path) -> None:
        self.origin, self.folder = origin, folder

    def said(self, values: dict[str, Any]) -> list[Said]:
        return _presets_first([one for key, value in values.items() for one in self.at((key,), value)])

    def at(self, path: KeyPath, value: Any) -> list[Said]:
        key = ".".join(path)
        if path == ("model", "preset"):
            if not isinstance(value, str):
                raise UserError(
                    f"{self.origin(path)}: model is neither a preset's name nor keys",
                    remedy="Write model: gpt2-small, or model: {layers: 4, heads: 4, width: 256}",
                )
            return _preset("model", value, str(self.origin(path)))
        if key in sections() or key in OWN_KEYS:
            return self._section(path, value)
        if path[0] not in OWN_KEYS and key not in keys():
            raise unknown_key(key, str(self.origin(path)))
        return [Said(key=key, value=self._absolute(key, value), origin=self.origin(path), written=value)]

    def _section(self, path: KeyPath, value: Any) -> list[Said]:
        key = ".".join(path)
        if value is None:
            return []  # a section with all its lines commented out
        if key == "secrets" and isinstance(value, list):
            value = {str(name): f"env:{name}" for name in value}
        if key == "model" and isinstance(value, str) and is_code(value):
            value = {"family": value}
        if not isinstance(value, dict) and key in SHORTHANDS:
            return self.at((*path, SHORTHANDS[key]), value)
        if not isinstance(value, dict):
            example = next((k for k in keys() if k.startswith(f"{key}.")), f"{key}.NAME")
            raise UserError(
                f"{self.origin(path)}: {key} holds keys, it is no value of its own",
                remedy=f"Say which one you mean, such as {example}",
            )
        return [one for name, item in value.items() for one in self.at((*path, name), item)]

    def _absolute(self, key: str, value: Any) -> Any:
        if key == "data.mix" and isinstance(value, list):
            return [self._part(item) for item in value]
        if key == "data.path" and isinstance(value, list):
            return [self._absolute(key, item) for item in value]
        if not isinstance(value, str) or not value or "://" in value:
            return value
        if key.startswith("secrets.") and value.startswith("file:"):
            return f"file:{_place(self.folder, value.removeprefix('file:'))}"
        if key == "data.path" and is_code(value) and not os.path.exists(os.path.join(self.folder, value)):
            return value
        if key in ("data.path", "script"):
            return _place(self.folder, value)
        if key in ("data.tokenizer", "init.path", "objective.teacher"):
            looks_local = value.startswith((".", "/", "~"))
            place = _place(self.folder, value)
            return place if looks_local or os.path.isdir(place) else value  # else a name: on the hub, or a run's
        return value

    def _part(self, part: Any) -> Any:
        if not isinstance(part, dict) or "path" not in part:
            return part  # what is wrong with it is for its field to say
        return part | {"path": self._absolute("data.path", part["path"])}


def _place(folder: Path, value: str) -> str:
    """An absolute path; a glob stays one, and brackets in the folder's own name do not become part of it."""
    value = os.path.expanduser(value)
    joined = os.path.abspath(folder / value)
    if os.path.isabs(value) or os.path.lexists(joined) or not glob.has_magic(value):
        return joined
    return os.path.normpath(os.path.join(glob.escape(os.path.abspath(folder)), value))


def _presets_first(said: Iterable[Said]) -> list[Said]:
    return sorted(said, key=lambda one: one.origin.kind != "model preset")


def _wrap(path: KeyPath, value: Any) -> Any:
    for word in reversed(path):
        value = {word: value}
    return value


def _nested(values: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        section, dot, name = key.partition(".")
        if dot:
            found.setdefault(section, {})[name] = value
        else:
            found[section] = value
    return found


def _name_of(file: Path) -> str:
    whole = file.absolute()
    return clean_name(whole.parent.name if whole.stem in ("run", "stoker") else whole.stem)
