"""The dotted keys of a run file: which there are, what they mean, which one was meant."""

import difflib
from functools import cache

from pydantic.fields import FieldInfo

from stoker.spec.run import AnySpec, RunSpec, ScriptSpec
from stoker.spec.section import Section

OWN_KEYS = ("env", "secrets")  # sections whose keys are the user's own


@cache
def keys() -> dict[str, FieldInfo]:
    """Every key, sections before what is in them."""
    ours, theirs = dict(_below(RunSpec, "")), dict(_below(ScriptSpec, ""))
    return ours | {key: field for key, field in theirs.items() if key not in ours}


@cache
def sections() -> dict[str, type[Section]]:
    found: dict[str, type[Section]] = {"": RunSpec}
    for key, field in keys().items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            found[key] = field.annotation
    return found


def doc(key: str) -> str:
    field = keys().get(key) or keys()[key.partition(".")[0]]
    return field.description or ""


def nearest(key: str, among: list[str]) -> str | None:
    """The one of `among` that `key` was most likely meant to be: by its last word first, then as a whole."""
    by_word = {candidate.rpartition(".")[2]: candidate for candidate in reversed(among)}
    found = difflib.get_close_matches(key.rpartition(".")[2].lower(), by_word, n=1, cutoff=0.7)
    if found:
        same_section = f"{key.rpartition('.')[0]}.{found[0]}".lstrip(".")
        return same_section if same_section in among else by_word[found[0]]
    whole = difflib.get_close_matches(key, among, n=1, cutoff=0.7)
    return whole[0] if whole else None


def flat(spec: AnySpec) -> dict[str, object]:
    """Every value of a spec under its dotted key."""
    found: dict[str, object] = {}
    for key in keys():
        if key in sections() or key.partition(".")[0] not in type(spec).model_fields:
            continue
        value: object = spec
        for word in key.split("."):
            value = getattr(value, word)
        if key in OWN_KEYS and isinstance(value, dict):
            found |= {f"{key}.{name}": item for name, item in value.items()}
        else:
            found[key] = _plain(value)
    return found


def _plain(value: object) -> object:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.model_dump() if isinstance(value, Section) else value


def _below(section: type[Section], prefix: str) -> list[tuple[str, FieldInfo]]:
    found: list[tuple[str, FieldInfo]] = []
    for name, field in section.model_fields.items():
        found.append((prefix + name, field))
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            found += _below(field.annotation, f"{prefix}{name}.")
    return found
