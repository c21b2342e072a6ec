"""pydantic's complaint -> one line that names the key, the place that said it, and what to write instead."""

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from stoker.spec.errors import UserError
from stoker.spec.keys import OWN_KEYS, doc, keys, nearest, sections

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

Saying = tuple[Any, str]
"""A value, and where it was said."""


def explain_problem(error: ValidationError, said: dict[str, Saying], file: Path | None) -> UserError:
    """The first problem of those found: mending one often mends the others."""
    problems = error.errors(include_url=False)
    key = _key(problems[0])
    same = [problem for problem in problems if _key(problem) == key]
    nearest_fit = min(same, key=_rank)
    named = key or next((word for word in str(nearest_fit["msg"]).split() if word in said), "")
    places = [place for name, (_, place) in said.items() if name == named or (key and name.startswith(f"{key}."))]
    where = places[0] if places else str(file) if file else "command line"
    return _line(nearest_fit, same, key, where, said)


def unknown_key(key: str, where: str) -> UserError:
    near = nearest(key, [*keys(), "base", "model.preset"])
    section = key.rpartition(".")[0]
    if near:
        remedy = f"Did you mean {near}?"
    elif section in sections():
        remedy = f"{section or 'A run file'} takes {', '.join(sections()[section].model_fields)}"
    else:
        remedy = "stoker schema shows all keys"
    return UserError(f"{where}: {key} is unknown", remedy=remedy)


def _line(problem: ErrorDetails, same: list[ErrorDetails], key: str, where: str, said: dict[str, Saying]) -> UserError:
    kind, context = problem["type"], problem.get("ctx", {})
    words = [choice for one in same if one["type"] == "literal_error" for choice in _choices(one)]
    meaning = _meaning(key)
    if kind == "missing" and key not in said:
        in_file, as_word = EXAMPLES[key]
        return UserError(f"{where}: {key} is missing", remedy=f"Write {in_file} in the file, or {as_word} as a word")
    if kind == "extra_forbidden":
        return UserError(f"{where}: {key}.{problem['loc'][-1]} is unknown", remedy=f"{key} takes {meaning}")
    if kind == "value_error":
        what, _, remedy = str(context["error"]).partition("; ")
        remedy = f"{remedy[:1].upper()}{remedy[1:]}" + (f", or {' or '.join(words)}" if words else "")
        return UserError(f"{where}: {key}: {what}" if key else f"{where}: {what}", remedy=remedy)
    name, shown = _part(problem, key), _show(problem["input"])
    if kind == "literal_error" and len(same) == 1:
        near = nearest(str(problem["input"]), words)
        return UserError(
            f"{where}: {name} is {shown}, which is none of {', '.join(words)}",
            remedy=f"Did you mean {near}?" if near else f"Write {name}: {words[0]}, or another of them",
        )
    if kind in BOUNDS:
        limit, relation = BOUNDS[kind]
        about = f" ({meaning})" if name == key else ""
        return UserError(f"{where}: {name} is {shown}", remedy=f"It must be {relation} {context[limit]}{about}")
    forms = [EXPECTED[form] for one in same if (form := one["type"].rpartition("_")[0]) in EXPECTED]
    if forms and len(same) <= 2:
        takes = ", or ".join(dict.fromkeys([*words, *forms]))
        about = f" ({meaning})" if meaning else ""
        return UserError(f"{where}: {key} cannot be {_show(said[key][0])}", remedy=f"It takes {takes}{about}")
    return UserError(f"{where}: {key} cannot be {_show(said[key][0])}", remedy=f"It is {meaning}")


def _meaning(key: str) -> str:
    """The field's doc as the end of a sentence."""
    if key not in keys():
        return ""
    text = doc(key).rstrip(".")
    first = text.partition(" ")[0]
    return text if first != first.capitalize() else text[:1].lower() + text[1:]


def _part(problem: ErrorDetails, key: str) -> str:
    """The key, or the one inside it that was tried as a section of its own: data.tokenizer.train."""
    kind, *rest = [str(word) for word in problem["loc"][len(key.split(".")) :]] or [""]
    return f"{key}.{rest[0]}" if kind[:1].isupper() and rest else key


def _key(problem: ErrorDetails) -> str:
    """The longest known key that the location begins with: beyond it come pydantic's names for the types it tried."""
    words = [str(word) for word in problem["loc"]]
    if words and words[0] in OWN_KEYS:
        return ".".join(words[:2])
    return next((key for n in range(len(words), 0, -1) if (key := ".".join(words[:n])) in keys()), "")


def _rank(problem: ErrorDetails) -> tuple[int, int]:
    """Of the types tried for one value, the one that came nearest to fitting."""
    order = ["extra_forbidden", "value_error", "greater_than", "greater_than_equal"]
    kind = problem["type"]
    return (order.index(kind) if kind in order else len(order), -len(problem["loc"]))


def _choices(problem: ErrorDetails) -> list[str]:
    return [word.strip(" '") for word in problem["ctx"]["expected"].replace(" or ", ", ").split(",")]


def _show(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
