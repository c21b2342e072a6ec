"""JSON from outside is read within limits: what exceeds one is a ValueError, never a crash or a wait."""

import json
import os
import socket
from pathlib import Path

import pytest

from stoker.spec.bounded import parse_json, read_file, read_json


def test_plain_json_is_read_as_it_stands() -> None:
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
def test_what_exceeds_a_limit_is_a_value_error(text: str) -> None:
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
    with pytest.raises(ValueError, match="more than"):
        read_json(tmp_path / "large.json")


def test_only_a_regular_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # an address holds a hundred bytes
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    for path in (Path("pipe"), Path("socket"), tmp_path, Path("/dev/zero")):
        with pytest.raises(ValueError, match="not a regular file"):
            read_file(path)
    (tmp_path / "plain").write_bytes(b"12")
    assert read_file(tmp_path / "plain") == b"12"
