"""The dotted keys of a run file, their docs, and suggestions for misspelled keys."""

import difflib
from functools import cache

from pydantic.fields import FieldInfo

from stoker.spec.on import On, on_fields
from stoker.spec.run import AnySpec, RunSpec, ScriptSpec
from stoker.spec.section import Section

OWN_KEYS = ("env", "secrets")  # sections whose keys are the user's own


@cache
def keys() -> dict[str, FieldInfo]:
    """Every key; a section comes before its keys."""
    run_keys, script_keys = dict(_below(RunSpec, "")), dict(_below(ScriptSpec, ""))
    return run_keys | {key: field for key, field in script_keys.items() if key not in run_keys}


@cache
def sections() -> dict[str, type[Section]]:
    sections_by_key: dict[str, type[Section]] = {"": RunSpec}
    for key, field in keys().items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            sections_by_key[key] = field.annotation
    return sections_by_key


def doc(key: str) -> str:
    field = keys().get(key) or keys()[key.partition(".")[0]]
    return field.description or ""


def nearest(key: str, among: list[str]) -> str | None:
    """The key in `among` most similar to `key`: compared by the last part first, then as a whole."""
    by_name = {candidate.rpartition(".")[2]: candidate for candidate in reversed(among)}
    matches = difflib.get_close_matches(key.rpartition(".")[2].lower(), by_name, n=1, cutoff=0.7)
    if matches:
        same_section = f"{key.rpartition('.')[0]}.{matches[0]}".lstrip(".")
        return same_section if same_section in among else by_name[matches[0]]
    whole = difflib.get_close_matches(key, among, n=1, cutoff=0.7)
    return whole[0] if whole else None


def flat(spec: AnySpec) -> dict[str, object]:
    """Every value of a spec under its dotted key."""
    values: dict[str, object] = {}
    for key in keys():
        if key in sections() or key.partition(".")[0] not in type(spec).model_fields:
            continue
        value: object = spec
        for name in key.split("."):
            if not isinstance(value, Section) or name not in type(value).model_fields:
                break  # a key of another kind of backend
            value = getattr(value, name)
        else:
            values |= _leaves(key, value)
    return values


def _leaves(key: str, value: object) -> dict[str, object]:
    if key in OWN_KEYS and isinstance(value, dict):
        return {f"{key}.{name}": item for name, item in value.items()}
    return {key: _plain(value)}


def _plain(value: object) -> object:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.model_dump() if isinstance(value, Section) else value


def _below(section: type[Section], prefix: str) -> list[tuple[str, FieldInfo]]:
    fields: list[tuple[str, FieldInfo]] = []
    for name, field in (on_fields() if section is On else section.model_fields).items():
        fields.append((prefix + name, field))
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            fields += _below(field.annotation, f"{prefix}{name}.")
    return fields
