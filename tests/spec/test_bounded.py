"""JSON from outside is read within limits: beyond a limit it is a ValueError, never a crash or a wait."""

import json
import os
from pathlib import Path

import pytest

from stoker.spec.bounded import MAX_DEPTH, MAX_YAML_DIGITS, MAX_YAML_NODES, parse_json, parse_yaml_documents, read_json
from stoker.spec.document import parse_document, parse_value
from stoker.spec.errors import UserError

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 12))


def test_plain_json_is_parsed_unchanged() -> None:
    value = {"a": [1, -2.5, None, True, "é \\ [{ 😀"], "b": {"c": 2**63}}
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value, ensure_ascii=False).encode()) == value


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[" * 65 + "]" * 65,
        '{"a":' * 65 + "1" + "}" * 65,
        "9" * 5000,
        f'{{"step": {"9" * 21}}}',
        f"-{'9' * 21}",
        "1e999",
        "-1e999",
        "NaN",
        "[Infinity]",
        '"\\ud800"',
        '{"\\uDfff": 1}',
        '"' + '\\"' * 100_000,
        "{",
        "",
        "\x00",
    ],
    ids=lambda text: text[:12],
)
def test_json_beyond_a_limit_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_json(text)


def test_bytes_that_are_not_utf_8_are_a_value_error() -> None:
    with pytest.raises(UnicodeDecodeError):
        parse_json(b'"\xff"')


def test_a_whole_character_in_two_escapes_is_read() -> None:
    assert parse_json(json.dumps("😀")) == "😀"


def test_brackets_and_digits_inside_a_string_do_not_count() -> None:
    text = '[{"' * 200 + '\\" ' + "1" * 50
    assert parse_json(json.dumps({"line": text})) == {"line": text}


def test_many_brackets_side_by_side_are_not_deep() -> None:
    assert parse_json(json.dumps([[1]] * 1000)) == [[1]] * 1000


def test_a_long_text_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(ValueError, match="more than 10 bytes"):
        parse_json("[1, 2, 3, 4]", max_bytes=10)


def test_a_large_file_is_refused_without_reading_all_of_it(tmp_path: Path) -> None:
    with open(tmp_path / "large.json", "wb") as file:
        file.truncate(1 << 40)  # sparse: takes no room
    with pytest.raises(ValueError, match="larger than 16 MiB"):
        read_json(tmp_path / "large.json")


def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ValueError, match="not a regular file"):
            read_json(path)
    with pytest.raises(IsADirectoryError):
        read_json(tmp_path)
    (tmp_path / "plain").write_bytes(b"12")
    assert read_json(tmp_path / "plain") == 12


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "name:5: not YAML: it holds more than 50,000 values"),
        (MERGES, "it holds more than 50,000 values"),
        ("a: " + "[" * 100_000, f"name:1: not YAML: it is nested deeper than {MAX_DEPTH} levels"),
        ("a: " + "[" * 100 + "]" * 100, "nested deeper"),
        ("\n".join(" " * n + "a:" for n in range(100)), "nested deeper"),
        ("- " * 1000 + "a", "nested deeper"),
        ("a: " + "9" * 5000, "a number of 5000 characters is too long"),
        ("a: " + "1" * (MAX_YAML_DIGITS + 1), "too long"),
        ("a: 1." + "1" * 5000, "too long"),
        ("a: &a {b: *a}", "an alias contains itself"),
        ("a: &a [1, [2, *a]]", "an alias contains itself"),
        ("a: !!int x", "'x' is no int"),
        ('a: !!int ""', "'' is no int"),
        ("a: !!bool x", "'x' is no bool"),
        ("a: !!float x", "'x' is no float"),
        ("a: !!timestamp x", "not YAML"),
        ("a: !!set x", "not YAML"),
        ("a: !!python/name:os.system x", "not YAML"),
    ],
)
def test_yaml_beyond_a_limit_is_refused_while_it_is_read(text: str, message: str) -> None:
    for read in (parse_yaml_documents, parse_document):
        with pytest.raises(UserError) as error:
            read(text, "name")
        assert message in str(error.value)


def test_numbers_of_yaml_1_1_are_limited_too() -> None:
    with pytest.raises(UserError, match="too long"):
        parse_yaml_documents("a: 1" + ":10" * 20_000, "name")


def test_yaml_within_the_limits_is_read() -> None:
    text = "a: &a [1, 2]\nb: [*a, *a]\nc: {<<: {x: 1}}\n---\n" + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    first, _second = parse_yaml_documents(text, "name")
    assert first == {"a": [1, 2], "b": [[1, 2], [1, 2]], "c": {"x": 1}}
    assert len(parse_yaml_documents("a: [" + "1," * (MAX_YAML_NODES - 10) + "]", "name")[0]["a"]) == MAX_YAML_NODES - 10


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 5000, "9" * 5000, "-" + "9" * 5000, '["x', "[*a]"])
def test_a_value_of_the_command_line_is_limited_too(text: str) -> None:
    with pytest.raises(UserError) as error:
        parse_value(text, "command line")
    assert len(str(error.value)) < 400
