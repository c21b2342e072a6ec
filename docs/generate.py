"""Write docs/reference/run-file.md from the docs under the fields of RunSpec.

python docs/generate.py
"""

from pathlib import Path

from stoker.spec.keys import doc, keys
from stoker.spec.on import KubernetesOn, On
from stoker.spec.run import RunSpec, ScriptSpec

OUT = Path(__file__).parent / "reference" / "run-file.md"


def reference() -> str:
    lines = [
        "# The run file",
        "",
        "Generated from the source by `python docs/generate.py`; `stoker schema` has the types.",
        "",
    ]
    defaults = ScriptSpec(script="x").model_dump(mode="json")
    defaults |= RunSpec.model_validate({"data": {"path": "x"}, "until": {"steps": 1}}).model_dump(mode="json")
    first_of_kubernetes = next(name for name in KubernetesOn.model_fields if name not in On.model_fields)
    section = None
    for key in keys():
        head, _, tail = key.partition(".")
        if head != section:
            section = head
            lines += ["", f"## {head}{_default(head, defaults)}", "", doc(head), ""]
        if key == f"on.{first_of_kubernetes}":
            lines += ["", "With `kind: kubernetes`:", ""]
        if tail:
            lines.append(f"- `{key}`{_default(key, defaults)}: {doc(key)}")
    return "\n".join(lines) + "\n"


def _default(key: str, defaults: dict[str, object]) -> str:
    if key == "until.steps":
        return ""
    value: object = defaults
    for part in key.split("."):
        value = value[part] if isinstance(value, dict) and part in value else None
    if value is None and key.startswith("on."):
        value = keys()[key].default
    if value is None or (isinstance(value, dict) and value) or key == "data.path":
        return ""
    return f" ({value})"


if __name__ == "__main__":
    OUT.write_text(reference())
