"""JSON Schema of a run file: what an editor needs to complete keys, show their docs and mark mistakes."""

from typing import Any

from stoker.spec.code import CODE
from stoker.spec.presets import presets
from stoker.spec.run import RunSpec, ScriptSpec

Schema = dict[str, Any]
BOUNDS = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}
"""pydantic keeps its own names of bounds after a custom type."""


def run_schema() -> Schema:
    """RunSpec's schema, extended to what a file may contain: `base:`, shorthands, units, and keys left to the base."""
    schema = RunSpec.model_json_schema()
    sections = schema["$defs"]
    for section in [schema, *sections.values()]:
        section.pop("required", None)
        section["properties"] = {name: _with_units(field) for name, field in section["properties"].items()}
    models = {"type": "string", "enum": list(presets("model"))}
    sections["Model"]["properties"]["preset"] = models | {"description": "The preset that gives the sizes."}
    keys = schema["properties"]
    script = ScriptSpec.model_json_schema()["properties"]
    keys |= {name: script[name] for name in ("script", "args")}
    keys["model"] = _or(keys["model"], models, {"type": "string", "pattern": CODE})
    keys["data"] = _or(keys["data"], {"type": "string"}, {"type": "array", "items": {"type": "string"}})
    keys["objective"] = _or(keys["objective"], {"type": "string"})
    keys["on"] = _or(keys["on"], {"type": "string"})
    names = {"type": "array", "items": {"type": "string"}}
    keys["secrets"] = {"description": keys["secrets"]["description"], "anyOf": [keys["secrets"], names]}
    base = {"type": "string", "description": f"A run preset ({', '.join(presets('run'))}) or another run file."}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Stoker run file",
        **{key: value for key, value in schema.items() if key not in ("title", "properties")},
        "properties": {"base": base, **keys},
    }


def _or(schema: Schema, *others: Schema) -> Schema:
    head = {key: schema[key] for key in ("description", "default") if key in schema}
    own = schema["oneOf"] if "oneOf" in schema else [{"$ref": schema["$ref"]}]
    return head | {"anyOf": [*own, *others]}


def _with_units(schema: Any) -> Any:
    """A number may be written as text: 10k, 2h, 2%, and 6e-4, which many editors do not accept as a number."""
    if isinstance(schema, list):
        return [_with_units(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    widened = {key: _with_units(value) if key != "default" else value for key, value in schema.items()}
    widened = {BOUNDS.get(key, key): value for key, value in widened.items()}
    if widened.get("type") in ("integer", "number"):
        widened["type"] = [widened["type"], "string"]
    return widened
