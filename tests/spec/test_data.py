"""The values that `data:` accepts: local and remote paths, streams, mixtures; and its errors for all others."""

import json
from pathlib import Path

import pytest

from stoker.spec.errors import UserError
from stoker.spec.load import load
from stoker.spec.schema import run_schema

END = "until.steps=10"


def test_urls_stay_unchanged_and_paths_of_a_mixture_are_relative_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "data:\n"
        "  mix:\n"
        "  - {path: books/*.txt, weight: 7}\n"
        "  - {path: ['hf://datasets/a/b@main/x', news], weight: 3e0, field: body}\n"
        "until: {steps: 10}\n"
    )
    data = load(file, []).training.data
    assert data.paths == [f"{tmp_path}/books/*.txt", "hf://datasets/a/b@main/x", f"{tmp_path}/news"]
    assert data.mix is not None
    assert [(part.weight, part.field) for part in data.mix] == [(7.0, None), (3.0, "body")]


def test_a_window_is_written_with_human_units() -> None:
    data = load(None, ["data.path=x", "data.stream=true", "data.window=128M", END]).training.data
    assert (data.stream, data.window, data.ahead) == (True, 128_000_000, 4)


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["data={mix: [{path: a, weight: 1}]}"], ["data.mix"]),
        (["data={mix: [{path: a, weight: 1}, {path: b, weight: 0}]}"], ["data.mix", "more than 0"]),
        (["data={mix: [{path: a, weight: 1}, {path: b}]}"], ["data.mix", "weight"]),
        (["data={mix: [{path: a, weight: 1}, {path: b, wieght: 1}]}"], ["data.mix", "wieght"]),
        (["data={mix: [{path: a, weight: 5000}, {path: b, weight: 1}]}"], ["one sample in 4096", "remove that part"]),
        (["data={path: c, mix: [{path: a, weight: 1}, {path: b, weight: 1}]}"], ["both path and mix"]),
        (["data.tokenizer=gpt2"], ["it has no path", "data: ./books"]),
        (["data={stream: true, mix: [{path: a, weight: 1}, {path: b, weight: 1}]}"], ["a mixture cannot be streamed"]),
        (["data={stream: true, path: 'mine:texts'}"], ["the texts of a function", "remove stream"]),
        (
            ["data={mix: [{path: a, weight: 1}, {path: b, weight: 1}]}", "until={epochs: 2}"],
            ["until.epochs cannot be used with data.mix", "until.tokens"],
        ),
        (["data.path=x", "data.window=0"], ["data.window"]),
    ],
)
def test_an_invalid_value_is_reported_in_one_line_with_a_remedy(overrides: list[str], parts: list[str]) -> None:
    with pytest.raises(UserError) as error:
        load(None, [END, *overrides])
    assert all(part.lower() in str(error.value).lower() for part in parts), str(error.value)
    assert "\n" not in str(error.value)


def test_the_schema_has_mixtures() -> None:
    schema = run_schema()
    assert set(schema["$defs"]["MixturePart"]["properties"]) == {"path", "weight", "field"}
    assert "mix" in schema["$defs"]["Data"]["properties"]
    json.dumps(schema)
