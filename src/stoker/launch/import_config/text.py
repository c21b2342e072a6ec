"""A manifest's file as a run file's text."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from stoker.launch.import_config import torchx
from stoker.launch.import_config.fields import UNUSED, Outcome, dotted, leaves
from stoker.launch.import_config.jobs import KINDS, convert
from stoker.spec.bounded_yaml import load_all
from stoker.spec.document import parse_value
from stoker.spec.errors import UserError
from stoker.spec.problems import explain_problem
from stoker.spec.run import ScriptSpec

VARIABLE = re.compile(r"\$(?:\{(\w+)\}|([A-Za-z_]\w*))")
WIDTH = 116
INSIDE = ("on", "env", "secrets")  # keys that hold keys


def read_manifest(
    text: str, name: str, kind: str, variables: Mapping[str, str]
) -> tuple[dict[str, Any], list[Outcome]]:
    """The run file's values, and what became of every field. `name` is what messages call the text."""
    used: set[str] = set()

    def value(found: re.Match[str]) -> str:
        variable = found[1] or found[2]
        used.add(variable)
        return variables.get(variable, found[0])

    plain = VARIABLE.sub(value, text)
    if unknown := sorted(set(variables) - used):
        raise UserError(f"{name} has no ${unknown[0]}", remedy=f"Take --set {unknown[0]}=… out")
    read = _command if kind == torchx.KIND else _job
    values, outcomes = read(plain, name, kind)
    _check(values, outcomes, name)
    return values, outcomes


def run_file(values: dict[str, Any], outcomes: Sequence[Outcome], *, source: str) -> str:
    """YAML, with what was not used as comments at its end."""
    lines = [f"# From {source}. Look at what it would start with: stoker launch FILE --dry-run"]
    if not values["script"].startswith("/"):
        lines.append(
            "# The script is looked for beside this file; write its path in the image if only the image has it."
        )
    written = yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=WIDTH).rstrip()
    lines.append(re.sub(r"^'on':", "on:", written, flags=re.MULTILINE))  # no boolean in a run file
    unused = [(field, what.removeprefix(UNUSED)) for field, what in outcomes if what.startswith(UNUSED)]
    if unused:
        lines += ["", "# Not used:", *(f"#   {field}: {why}" for field, why in unused)]
    return "\n".join(lines) + "\n"


def _command(text: str, name: str, _kind: str) -> tuple[dict[str, Any], list[Outcome]]:
    words = torchx.document(text, name)
    _refuse_variables(words, name)
    return torchx.convert(words)


def _job(text: str, name: str, kind: str) -> tuple[dict[str, Any], list[Outcome]]:
    documents = load_all(text, name)
    wanted = KINDS[kind][1]
    ours = [one for one in documents if isinstance(one, dict) and one.get("kind") == wanted]
    if len(ours) != 1:
        raise UserError(
            f"{name} holds {len(ours) or 'no'} {wanted}{'s' * (len(ours) > 1)}", remedy="Give a file with one"
        )
    _refuse_variables(ours[0], name)
    values, outcomes = convert(kind, ours[0])
    for one in documents:
        if one is not ours[0]:
            outcomes.append((_title(one), f"{UNUSED}it is another object; Stoker needs none beside its own"))
    return values, outcomes


def _check(values: dict[str, Any], outcomes: Sequence[Outcome], name: str) -> None:
    """A run file that Stoker would refuse is not made: the field that it comes from is named."""
    said: dict[str, tuple[Any, str]] = {}
    for key, value in values.items():
        for one, inner in value.items() if key in INSIDE else [("", value)]:
            whole = f"{key}.{one}".rstrip(".")
            fields = [field for field, what in outcomes if re.match(rf"{re.escape(whole)}\b", what)]
            said[whole] = inner, ": ".join([name, *([", ".join(fields[:3])] if fields else [])])
    try:
        ScriptSpec.model_validate(values)
    except ValidationError as e:
        raise explain_problem(e, said, Path(name)) from e


def _refuse_variables(document: dict[str, Any], name: str) -> None:
    found: dict[str, str] = {}
    for path in leaves(document):
        value: Any = document
        for key in path:
            value = value[key]
        for one in VARIABLE.finditer(value if isinstance(value, str) else ""):
            found.setdefault(one[1] or one[2], dotted(path))
    if found:
        first = next(iter(found))
        raise UserError(
            f"{name} is a template: {', '.join(f'${variable}' for variable in found)} "
            f"{'has no value' if len(found) == 1 else 'have no values'} (first in {found[first]})",
            remedy="Say them: " + " ".join(f"--set {variable}=VALUE" for variable in found),
        )


def _title(document: Any) -> str:
    if not isinstance(document, dict):
        return "another document"
    return f"{document.get('kind', 'document')} {(document.get('metadata') or {}).get('name', '')}".rstrip()


class _Dumper(yaml.SafeDumper):
    """Quotes what a run file would not read as the text that it is, such as 1e-4."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    plain = "\n" in value or value.startswith(("[", "{", '"', "'")) or isinstance(parse_value(value, ""), str)
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')


_Dumper.add_representer(str, _text)
