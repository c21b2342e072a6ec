"""Presets, run file and `key=value` overrides -> RunSpec, with the origin of every value.

Each layer has precedence over the one before: defaults, the user's config file, `base:` (a run preset or another file,
which may have its own base), the file, the overrides. The values of a model preset belong to the layer that names it,
and that layer's own `model` keys have precedence. The name of a run is not inherited from a base: two files with one
base are two runs.
"""

import glob
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from stoker.spec import contract, user_config
from stoker.spec.code import is_code
from stoker.spec.document import KeyPath, parse_value, read_document
from stoker.spec.errors import UserError
from stoker.spec.keys import OWN_KEYS, flat, keys, sections
from stoker.spec.presets import preset
from stoker.spec.problems import explain_problem, unknown_key
from stoker.spec.run import AnySpec, RunSpec, ScriptSpec

SHORTHANDS = {"model": "preset", "data": "path", "init": "path", "objective": "kind", "on": "kind"}
"""The key that a plain value of a section sets: `model: gpt2-small`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where a value was set."""

    kind: Literal["default", "model preset", "run preset", "file", "command line", "python"]
    name: str = ""
    line: int | None = None

    def __str__(self) -> str:
        if self.kind == "file":
            return f"{self.name}:{self.line}" if self.line else self.name
        return f"{self.kind} {self.name}".rstrip()


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One value for one key, from one origin."""

    key: str
    value: Any
    origin: Origin
    written: Any = None
    """A path as it was written; `value` is absolute."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    spec: AnySpec
    settings: dict[str, list[Setting]]
    """Dotted key -> all its values, by precedence; the default, where there is one, comes last."""

    @property
    def training(self) -> RunSpec:
        """The spec of a run that trains a model of Stoker. Raises UserError for a script."""
        if isinstance(self.spec, ScriptSpec):
            raise UserError(f"{self.origins['script']}: this command does not take a script", remedy="Remove script")
        return self.spec

    @property
    def launchable(self) -> AnySpec:
        """The spec. Raises UserError for a local script that would not be in the image of the pods."""
        spec, script = self.spec, self.settings["script"][0] if "script" in self.settings else None
        if script is None or spec.on.copies_code:
            return spec
        if not os.path.isabs(str(script.written)):
            raise UserError(
                f"{script.origin}: script {script.written} is a file on this machine, and on.image is used unchanged: "
                "the pods would not have the script",
                remedy="Set on.registry=… to push an image with the script; or write the path of the script in the "
                "image, such as script: /app/train.py",
            )
        return spec

    @property
    def from_user_config(self) -> dict[str, Any]:
        """The keys and values that come from the user's config file."""
        file = str(user_config.config_file())
        return {key: settings[0].value for key, settings in self.settings.items() if settings[0].origin.name == file}

    @property
    def origins(self) -> dict[str, Origin]:
        return {key: settings[0].origin for key, settings in self.settings.items()}


def load(file: Path | AnySpec | None, overrides: Sequence[str]) -> Loaded:
    """The spec of a run file, or of a spec made in Python, with `key=value` overrides.

    Relative paths in overrides, and in a spec made in Python, are relative to the current folder.
    """
    overridden, base = _overrides(overrides)
    if isinstance(file, AnySpec):
        layers = _base(base, Path(), Origin(kind="command line"), ()) if base else []
        made = file.model_dump(mode="json", exclude_unset=True)
        layers += _Layer(lambda _: Origin(kind="python"), Path()).settings(made)
        name, file = file.name, None
    elif file is not None:
        layers = _file(file, base=base, inside=())
        name = _name_of(file)
    else:
        layers = _base(base, Path(), Origin(kind="command line"), ()) if base else []
        name = clean_name(Path(base).stem) if base else "run"
    settings: dict[str, list[Setting]] = {}
    for setting in [*layers, *overridden]:
        settings.setdefault(setting.key, []).insert(0, setting)
    settings.setdefault("name", []).append(Setting(key="name", value=name, origin=Origin(kind="default")))
    _add_user_defaults(settings)
    try:
        spec = _kind(settings).model_validate(_nested({key: settings[key][0].value for key in settings}))
    except ValidationError as e:
        raise explain_problem(
            e, {key: (values[0].value, str(values[0].origin)) for key, values in settings.items()}, file
        ) from e
    return Loaded(spec=spec, settings=_with_defaults(settings, spec))


def _add_user_defaults(settings: dict[str, list[Setting]]) -> None:
    """The user's config file has the lowest precedence, and applies to runs of its kind only."""
    if "on.kind" not in settings or settings["on.kind"][0].value != user_config.KIND:
        return
    for default in user_config.user_defaults():
        origin = Origin(kind="file", name=str(default.file), line=default.line)
        settings.setdefault(default.key, []).append(Setting(key=default.key, value=default.value, origin=origin))


def _kind(settings: dict[str, list[Setting]]) -> type[AnySpec]:
    """A script or a model of Stoker. Raises UserError for keys of the other."""
    kind: type[AnySpec] = ScriptSpec if "script" in settings else RunSpec
    for key, values in settings.items():
        if key.partition(".")[0] not in kind.model_fields:
            why = "a script sets that itself" if kind is ScriptSpec else "no script is set"
            raise UserError(f"{values[0].origin}: {key} has no effect: {why}", remedy=f"Remove {key} or script")
    return kind


def clean_name(name: str) -> str:
    """The nearest valid name of a run."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[: contract.MAX_NAME] or "run"


def _with_defaults(settings: dict[str, list[Setting]], spec: AnySpec) -> dict[str, list[Setting]]:
    values: dict[str, list[Setting]] = {}
    for key in flat(spec):
        values[key] = settings.get(key, [])
        field = keys().get(key)
        if field is not None and key != "name" and not field.is_required():
            default = Setting(key=key, value=field.default, origin=Origin(kind="default"))
            values[key] = [*values[key], default]
    return values


def _file(path: Path, *, base: str | None = None, inside: tuple[Path, ...]) -> list[Setting]:
    """The settings of a file's base, then those of the file. `base`: an override of the file's own."""
    real = Path(os.path.realpath(path))  # Path.resolve fails on links that form a circle
    if real in inside:
        raise UserError(f"{path} is its own base", remedy="Remove base: from one of the files")
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
    return layers + _Layer(origin, path.parent).settings(values)


def _base(base: object, folder: Path, origin: Origin, inside: tuple[Path, ...]) -> list[Setting]:
    if not isinstance(base, str):
        raise UserError(
            f"{origin}: base is not a name", remedy="Write the name of a preset or file, such as base: gpt2-small"
        )
    if base.endswith((".yaml", ".yml")) or "/" in base:
        path = folder / os.path.expanduser(base)
        if not path.exists():
            raise UserError(f"{origin}: base names {path}, which does not exist", remedy="Check the path")
        layers = _file(path, inside=inside)
    else:
        layers = _preset("run", base, str(origin))
    return [setting for setting in layers if setting.key != "name"]


def _preset(kind: Literal["model", "run"], name: str, where: str) -> list[Setting]:
    named = preset(kind, name, where=where)
    values = named.document.values if kind == "run" else {"model": named.document.values}
    origin = Origin(kind="run preset" if kind == "run" else "model preset", name=name)
    layers = []
    if "base" in values:
        values = dict(values)
        layers = _base(values.pop("base"), named.path.parent, origin, ())
    return layers + _Layer(lambda _: origin, Path()).settings(values)


def _overrides(overrides: Sequence[str]) -> tuple[list[Setting], str | None]:
    """The settings of the overrides, and the base if one of them sets it."""
    settings: list[Setting] = []
    base: str | None = None
    layer = _Layer(lambda _: Origin(kind="command line"), Path())
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise UserError(
                f"'{override}' is not of the form key=value", remedy="Write overrides such as until.steps=1000"
            )
        if any("\ud800" <= character <= "\udfff" for character in override):  # not UTF-8
            raise UserError(f"{key} is not UTF-8 text", remedy="Rename the file, or convert the value")
        if key == "base":
            base = text
            continue
        path, value = tuple(key.split(".")), parse_value(text, "command line")
        known = next((n for n in range(len(path), 0, -1) if ".".join(path[:n]) in keys()), 0)
        at = ".".join(path[:known])
        if at in OWN_KEYS and len(path) > 1:
            path, value = (at, key.removeprefix(f"{at}.")), text  # the value of a variable is always text
        elif known and at not in sections():
            value, path = _wrap(path[known:], value), path[:known]  # data.tokenizer.train=4000
        settings += layer.at(path, value)
    return _presets_first(settings), base


class _Layer:
    """One mapping of keys, as settings."""

    def __init__(self, origin: Callable[[KeyPath], Origin], folder: Path) -> None:
        self.origin, self.folder = origin, folder

    def settings(self, values: dict[str, Any]) -> list[Setting]:
        return _presets_first([setting for key, value in values.items() for setting in self.at((key,), value)])

    def at(self, path: KeyPath, value: Any) -> list[Setting]:
        key = ".".join(path)
        if path == ("model", "preset"):
            if not isinstance(value, str):
                raise UserError(
                    f"{self.origin(path)}: model is neither the name of a preset nor keys",
                    remedy="Write model: gpt2-small, or model: {layers: 4, heads: 4, width: 256}",
                )
            return _preset("model", value, str(self.origin(path)))
        if key in sections() or key in OWN_KEYS:
            return self._section(path, value)
        if path[0] not in OWN_KEYS and key not in keys():
            raise unknown_key(key, str(self.origin(path)))
        return [Setting(key=key, value=self._absolute(key, value), origin=self.origin(path), written=value)]

    def _section(self, path: KeyPath, value: Any) -> list[Setting]:
        key = ".".join(path)
        if value is None:
            return []  # all its lines are commented out
        if key == "secrets" and isinstance(value, list):
            value = {str(name): f"env:{name}" for name in value}
        if key == "model" and isinstance(value, str) and is_code(value):
            value = {"family": value}
        if not isinstance(value, dict) and key in SHORTHANDS:
            return self.at((*path, SHORTHANDS[key]), value)
        if not isinstance(value, dict):
            example = next((k for k in keys() if k.startswith(f"{key}.")), f"{key}.NAME")
            raise UserError(
                f"{self.origin(path)}: {key} is a section with keys, not a value",
                remedy=f"Set one of its keys, such as {example}",
            )
        return [setting for name, item in value.items() for setting in self.at((*path, name), item)]

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
            return (
                place if looks_local or os.path.isdir(place) else value
            )  # else the name of a run, or of a model on the hub
        return value

    def _part(self, part: Any) -> Any:
        if not isinstance(part, dict) or "path" not in part:
            return part  # validated by its field
        return part | {"path": self._absolute("data.path", part["path"])}


def _place(folder: Path, value: str) -> str:
    """An absolute path. A glob stays a glob, and brackets in the name of the folder are not part of it."""
    value = os.path.expanduser(value)
    joined = os.path.abspath(folder / value)
    if os.path.isabs(value) or os.path.lexists(joined) or not glob.has_magic(value):
        return joined
    return os.path.normpath(os.path.join(glob.escape(os.path.abspath(folder)), value))


def _presets_first(settings: Iterable[Setting]) -> list[Setting]:
    return sorted(settings, key=lambda setting: setting.origin.kind != "model preset")


def _wrap(path: KeyPath, value: Any) -> Any:
    for name in reversed(path):
        value = {name: value}
    return value


def _nested(values: dict[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in values.items():
        section, dot, name = key.partition(".")
        if dot:
            nested.setdefault(section, {})[name] = value
        else:
            nested[section] = value
    return nested


def _name_of(file: Path) -> str:
    whole = file.absolute()
    return clean_name(whole.parent.name if whole.stem in ("run", "stoker") else whole.stem)
