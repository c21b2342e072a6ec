import json

from stoker.spec.keys import keys
from stoker.spec.schema import run_schema


def test_the_schema_has_every_key_with_its_doc_and_is_json() -> None:
    schema = json.loads(json.dumps(run_schema()))
    properties = dict(schema["properties"])
    assert properties.pop("base")["type"] == "string"
    documented = set(properties)
    for name, field in properties.items():
        assert field["description"]
        for reference in [form["$ref"] for form in [field, *field.get("anyOf", [])] if "$ref" in form]:
            section = schema["$defs"][reference.rpartition("/")[2]]
            assert section["additionalProperties"] is False
            documented |= {f"{name}.{key}" for key in section["properties"]}
    assert documented == {*keys(), "model.preset"}


def test_the_schema_accepts_shorthands_units_and_keys_left_to_a_base() -> None:
    schema = run_schema()
    assert "gpt2-small" in schema["properties"]["model"]["anyOf"][1]["enum"]
    assert {"type": "string"} in schema["properties"]["data"]["anyOf"]
    assert schema["$defs"]["Batch"]["properties"]["sequences"]["type"] == ["integer", "string"]
    assert schema["$defs"]["Batch"]["properties"]["sequences"]["exclusiveMinimum"] == 0
    assert "required" not in schema
