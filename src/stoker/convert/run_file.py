"""Reads the file of another launcher, and writes the run file."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from stoker.convert import torchx
from stoker.convert.manifests import KINDS, convert
from stoker.convert.tracked import ConversionOutcome, FieldOutcome, dotted, leaves
from stoker.spec.bounded import parse_yaml_documents
from stoker.spec.document import TAG_PREFIX, is_plain_text
from stoker.spec.errors import UserError
from stoker.spec.problems import explain_problem
from stoker.spec.run import ScriptSpec

VARIABLE = re.compile(r"\$(?:\{(\w+)\}|([A-Za-z_]\w*))")
WIDTH = 116
SECTIONS = ("on", "env", "secrets")


def read_manifest(
    text: str, name: str, kind: str, variables: Mapping[str, str]
) -> tuple[dict[str, Any], list[FieldOutcome]]:
    """The values of the run file, and the outcome of every field. `name` is the file's name, for messages."""
    used: set[str] = set()

    def value(match: re.Match[str]) -> str:
        variable = match[1] or match[2]
        used.add(variable)
        return variables.get(variable, match[0])

    expanded = VARIABLE.sub(value, text)
    if unknown := sorted(set(variables) - used):
        raise UserError(f"{name} has no ${unknown[0]}", remedy=f"Leave --set {unknown[0]}=… out")
    read = _command if kind == torchx.KIND else _job
    values, outcomes = read(expanded, name, kind)
    _check(values, outcomes, name)
    return values, outcomes


def run_file(values: dict[str, Any], outcomes: Sequence[FieldOutcome], *, source: str) -> str:
    """YAML, with the unused fields as comments at its end."""
    lines = [f"# From {_one_line(source)}. See what it would start with: stoker launch FILE --dry-run"]
    if not values["script"].startswith("/"):
        lines.append("# The script is expected beside this file; if only the image has it, write its path there.")
    written = yaml.dump(values, Dumper=_RunFileDumper, sort_keys=False, allow_unicode=True, width=WIDTH).rstrip()
    lines.append(re.sub(r"^'on':", "on:", written, flags=re.MULTILINE))  # a run file does not read `on` as a boolean
    unused = [_one_line(f"#   {field}: {outcome.text}") for field, outcome in outcomes if not outcome.is_used]
    if unused:
        lines += ["", "# Not used:", *unused]
    return "\n".join(lines) + "\n"


def _command(text: str, name: str, _kind: str) -> tuple[dict[str, Any], list[FieldOutcome]]:
    command = torchx.read_command(text, name)
    _refuse_variables(command, name)
    return torchx.convert(command)


def _job(text: str, name: str, kind: str) -> tuple[dict[str, Any], list[FieldOutcome]]:
    documents = parse_yaml_documents(text, name)
    wanted = KINDS[kind][1]
    jobs = [document for document in documents if isinstance(document, dict) and document.get("kind") == wanted]
    if len(jobs) != 1:
        raise UserError(
            f"{name} holds {len(jobs) or 'no'} {wanted}{'s' * (len(jobs) > 1)}", remedy="Give a file with one"
        )
    _refuse_variables(jobs[0], name)
    values, outcomes = convert(kind, jobs[0])
    for document in documents:
        if document is not jobs[0]:
            reason = "it is another object; Stoker creates all that it needs"
            outcomes.append((_title(document), ConversionOutcome(reason, is_used=False)))
    return values, outcomes


def _check(values: dict[str, Any], outcomes: Sequence[FieldOutcome], name: str) -> None:
    """Raises UserError for a run file that Stoker would refuse, and names the field that the value comes from."""
    origins: dict[str, tuple[Any, str]] = {}
    for section, value in values.items():
        for key, inner in value.items() if section in SECTIONS else [("", value)]:
            full = f"{section}.{key}".rstrip(".")
            fields = [field for field, outcome in outcomes if outcome.names(full)]
            origins[full] = inner, ": ".join([name, *([", ".join(fields[:3])] if fields else [])])
    try:
        ScriptSpec.model_validate(values)
    except ValidationError as e:
        raise explain_problem(e, origins, Path(name)) from e


def _refuse_variables(document: dict[str, Any], name: str) -> None:
    fields: dict[str, str] = {}
    for path in leaves(document):
        value: Any = document
        for key in path:
            value = value[key]
        for match in VARIABLE.finditer(value if isinstance(value, str) else ""):
            fields.setdefault(match[1] or match[2], dotted(path))
    if fields:
        first = next(iter(fields))
        raise UserError(
            f"{name} is a template: {', '.join(f'${variable}' for variable in fields)} "
            f"{'has no value' if len(fields) == 1 else 'have no values'} (first in {fields[first]})",
            remedy="Set them: " + " ".join(f"--set {variable}=VALUE" for variable in fields),
        )


def _title(document: Any) -> str:
    if not isinstance(document, dict):
        return "another document"
    metadata = document.get("metadata")
    name = metadata.get("name", "") if isinstance(metadata, dict) else ""
    return f"{document.get('kind', 'document')} {name}".rstrip()


def _one_line(comment: str) -> str:
    """With line ends and control characters escaped: text of the manifest must not end the comment."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in comment)


class _RunFileDumper(yaml.SafeDumper):
    """Quotes strings that a run file would read as something else, such as 1e-4."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(f"{TAG_PREFIX}str", value, style=None if is_plain_text(value) else '"')


_RunFileDumper.add_representer(str, _text)
