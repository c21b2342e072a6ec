"""YAML that would grow without end is refused while it is read."""

import pytest

from stoker.spec.bounded_yaml import MOST_DEPTH, MOST_DIGITS, MOST_NODES, load_all
from stoker.spec.document import parse_document, parse_value
from stoker.spec.errors import UserError

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 12))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "name:5: not YAML: it holds more than 50,000 values"),
        (MERGES, "it holds more than 50,000 values"),
        ("a: " + "[" * 100_000, f"name:1: not YAML: it is nested deeper than {MOST_DEPTH} levels"),
        ("a: " + "[" * 100 + "]" * 100, "nested deeper"),
        ("\n".join(" " * n + "a:" for n in range(100)), "nested deeper"),
        ("- " * 1000 + "a", "nested deeper"),
        ("a: " + "9" * 5000, "a number of 5000 characters is too long"),
        ("a: " + "1" * (MOST_DIGITS + 1), "too long"),
        ("a: 1." + "1" * 5000, "too long"),
        ("a: &a {b: *a}", "an alias holds itself"),
        ("a: &a [1, [2, *a]]", "an alias holds itself"),
        ("a: !!int x", "'x' is no int"),
        ('a: !!int ""', "'' is no int"),
        ("a: !!bool x", "'x' is no bool"),
        ("a: !!float x", "'x' is no float"),
        ("a: !!timestamp x", "not YAML"),
        ("a: !!set x", "not YAML"),
        ("a: !!python/name:os.system x", "not YAML"),
    ],
)
def test_what_exceeds_a_limit_is_refused_in_every_kind_of_yaml(text: str, message: str) -> None:
    for read in (load_all, parse_document):
        with pytest.raises(UserError) as refused:
            read(text, "name")
        assert message in str(refused.value)


def test_numbers_of_yaml_1_1_are_limited_too() -> None:
    with pytest.raises(UserError, match="too long"):
        load_all("a: 1" + ":10" * 20_000, "name")


def test_what_is_within_the_limits_is_read() -> None:
    text = "a: &a [1, 2]\nb: [*a, *a]\nc: {<<: {x: 1}}\n---\n" + "[" * (MOST_DEPTH - 1) + "]" * (MOST_DEPTH - 1)
    first, _second = load_all(text, "name")
    assert first == {"a": [1, 2], "b": [[1, 2], [1, 2]], "c": {"x": 1}}
    assert len(load_all("a: [" + "1," * (MOST_NODES - 10) + "]", "name")[0]["a"]) == MOST_NODES - 10


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 5000, "9" * 5000, "-" + "9" * 5000, '["x', "[*a]"])
def test_a_value_of_the_command_line_is_limited_too(text: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_value(text, "command line")
    assert len(str(refused.value)) < 400
