"""Turns an error of pydantic into one line: the key, where its value comes from, and what to write instead."""

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from stoker.spec.errors import UserError
from stoker.spec.keys import OWN_KEYS, doc, keys, nearest, sections
from stoker.spec.on import SECTIONS

EXAMPLES = {
    "data": ("data: ./books", "data=./books"),
    "data.path": ("data: ./books", "data=./books"),
    "until": ("until: {steps: 1000}", "until.steps=1000"),
}
EXPECTED = {
    "int": "a whole number",
    "int_from": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "string": "text, in quotes if it looks like a number",
    "tuple": "a list",
}
BOUNDS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}

ValueOrigin = tuple[Any, str]
"""A value, and where it was set: a file and line, or the command line."""


def explain_problem(error: ValidationError, origins: dict[str, ValueOrigin], file: Path | None) -> UserError:
    """Explains the first problem only: its fix often fixes the others."""
    problems = [_without_kind(problem) for problem in error.errors(include_url=False)]
    key = _key(problems[0])
    same = [problem for problem in problems if _key(problem) == key]
    nearest_fit = min(same, key=_rank)
    named = key or next((name for name in str(nearest_fit["msg"]).split() if name in origins), "")
    places = [place for name, (_, place) in origins.items() if name == named or (key and name.startswith(f"{key}."))]
    where = places[0] if places else str(file) if file else "command line"
    return _line(nearest_fit, same, key, where, origins)


def unknown_key(key: str, where: str) -> UserError:
    near = nearest(key, [*keys(), "base", "model.preset"])
    section = key.rpartition(".")[0]
    if near:
        remedy = f"Did you mean {near}?"
    elif section in sections():
        remedy = f"{section or 'A run file'} takes {', '.join(_names(section))}"
    else:
        remedy = "stoker schema shows all keys"
    return UserError(f"{where}: {key} is unknown", remedy=remedy)


def _names(section: str) -> list[str]:
    below = [key.removeprefix(f"{section}.") for key in keys() if not section or key.startswith(f"{section}.")]
    return [name for name in below if "." not in name]


def _line(
    problem: ErrorDetails, same: list[ErrorDetails], key: str, where: str, origins: dict[str, ValueOrigin]
) -> UserError:
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "union_tag_invalid":
        return _unknown_kind(context["tag"], where)
    if kind == "extra_forbidden" and problem["loc"] == ("on", *key.split(".")[1:]):
        return _of_another_kind(str(problem["loc"][1]), where)
    choices = [choice for other in same if other["type"] == "literal_error" for choice in _choices(other)]
    meaning = _meaning(key)
    if kind == "missing" and key not in origins:
        in_file, override = EXAMPLES[key]
        return UserError(
            f"{where}: {key} is missing", remedy=f"Write {in_file} in the file, or {override} on the command line"
        )
    if kind == "extra_forbidden":
        return UserError(f"{where}: {key}.{problem['loc'][-1]} is unknown", remedy=f"{key} takes {meaning}")
    if kind == "value_error":
        cause, _, remedy = str(context["error"]).partition("; ")
        remedy = f"{remedy[:1].upper()}{remedy[1:]}" + (f", or {' or '.join(choices)}" if choices else "")
        return UserError(f"{where}: {key}: {cause}" if key else f"{where}: {cause}", remedy=remedy)
    name, shown = _part(problem, key), _show(problem["input"])
    if kind == "literal_error" and len(same) == 1:
        near = nearest(str(problem["input"]), choices)
        return UserError(
            f"{where}: {name} is {shown}, which is none of {', '.join(choices)}",
            remedy=f"Did you mean {near}?" if near else f"Write {name}: {choices[0]}, or another of them",
        )
    if kind in BOUNDS:
        limit, relation = BOUNDS[kind]
        about = f" ({meaning})" if name == key else ""
        return UserError(f"{where}: {name} is {shown}", remedy=f"It must be {relation} {context[limit]}{about}")
    forms = [EXPECTED[form] for other in same if (form := other["type"].rpartition("_")[0]) in EXPECTED]
    if forms and len(same) <= 2:
        takes = ", or ".join(dict.fromkeys([*choices, *forms]))
        about = f" ({meaning})" if meaning else ""
        return UserError(f"{where}: {key} cannot be {_show(origins[key][0])}", remedy=f"It takes {takes}{about}")
    return UserError(f"{where}: {key} cannot be {_show(origins[key][0])}", remedy=f"It is {meaning}")


def _without_kind(problem: ErrorDetails) -> ErrorDetails:
    """pydantic puts the kind into the location of a problem in `on`: on, kubernetes, nodes."""
    place = problem["loc"]
    if len(place) > 1 and place[0] == "on" and place[1] in SECTIONS:
        return problem | {"loc": (place[0], *place[2:])}
    return problem


def _unknown_kind(kind: str, where: str) -> UserError:
    near = nearest(kind, [*SECTIONS])
    return UserError(
        f"{where}: on.kind is {_show(kind)}, which is none of {', '.join(SECTIONS)}",
        remedy=f"Did you mean {near}?" if near else "Write on.kind: local, or another of them",
    )


def _of_another_kind(name: str, where: str) -> UserError:
    kinds = [kind for kind, section in SECTIONS.items() if name in section.model_fields]
    return UserError(
        f"{where}: {name} is for {' or '.join(kind.title() for kind in kinds)} and has no effect here",
        remedy=f"Set on.kind to {' or '.join(kinds)}, or remove on.{name}",
    )


def _meaning(key: str) -> str:
    """The field's doc as the end of a sentence."""
    if key not in keys():
        return ""
    text = doc(key).rstrip(".")
    first = text.partition(" ")[0]
    return text if first != first.capitalize() else text[:1].lower() + text[1:]


def _part(problem: ErrorDetails, key: str) -> str:
    """The key, or the key inside it that pydantic tried as a section: data.tokenizer.train."""
    kind, *rest = [str(part) for part in problem["loc"][len(key.split(".")) :]] or [""]
    return f"{key}.{rest[0]}" if kind[:1].isupper() and rest else key


def _key(problem: ErrorDetails) -> str:
    """The longest known key at the start of the location; after it come pydantic's names of the types tried."""
    parts = [str(part) for part in problem["loc"]]
    if parts and parts[0] in OWN_KEYS:
        return ".".join(parts[:2])
    return next((key for n in range(len(parts), 0, -1) if (key := ".".join(parts[:n])) in keys()), "")


def _rank(problem: ErrorDetails) -> tuple[int, int]:
    """Sorts the problems of one value: first the type that the value fits best."""
    order = ["extra_forbidden", "value_error", "greater_than", "greater_than_equal"]
    kind = problem["type"]
    return (order.index(kind) if kind in order else len(order), -len(problem["loc"]))


def _choices(problem: ErrorDetails) -> list[str]:
    return [choice.strip(" '") for choice in problem["ctx"]["expected"].replace(" or ", ", ").split(",")]


def _show(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
