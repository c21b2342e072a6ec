"""Texts from a function of the user: called once, written to a file, and prepared like any other data."""

import json
from pathlib import Path

import pytest

from stoker.api.opening import begin
from stoker.data.prepare import PrepareProgress, prepare, prepared
from stoker.data.shards import TokenSet
from stoker.spec.data import Data, TrainTokenizer
from stoker.spec.errors import UserError
from stoker.spec.load import load
from tests.written import events_of

TEXTS = [f"It was day {i} of the voyage: Grüße aus 漢字,\nand the sea was \u2028calm." for i in range(400)]
COUNTED = """
def source():
    with open("asked", "a") as file:
        file.write("x")
    for i in range(400):
        yield f"It was day {i} of the voyage: Grüße aus 漢字,\\nand the sea was \\u2028calm."
"""


def data(*paths: str, **settings: object) -> Data:
    return Data.model_validate({"path": list(paths), "tokenizer": TrainTokenizer(train=300), **settings})


def tokens(made: TokenSet) -> list[int]:
    return [id for split in (made.train, made.validation) for id in _stream(split)]


def _stream(split) -> list[int]:
    return [int(id) for file in split.files() for id in memoryview(file.path.read_bytes()).cast("H")]


def test_its_texts_give_the_tokens_of_the_same_texts_in_a_file(mine, tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    from_function = prepared(data(f"{mine(COUNTED)}:source"), tmp_path / "store")
    from_file = prepared(data(str(file)), tmp_path / "store")
    assert tokens(from_function) == tokens(from_file)
    assert from_function.index.documents == 400


def test_texts_and_dicts_and_lists_are_all_taken(mine, tmp_path: Path) -> None:
    name = mine(
        f"TEXTS = {TEXTS!r}\ndef a(): return TEXTS\ndef b(): return ({{'text': t, 'n': 1}} for t in TEXTS)\n"
        "def c(): return [{'body': t} for t in TEXTS]\n"
    )
    made = [
        prepared(data(f"{name}:a"), tmp_path / "store"),
        prepared(data(f"{name}:b"), tmp_path / "store"),
        prepared(data(f"{name}:c", field="body"), tmp_path / "store"),
    ]
    assert tokens(made[0]) == tokens(made[1]) == tokens(made[2])
    assert made[0].path == made[1].path, "the same texts are the same token set"
    assert len(list((tmp_path / "store" / "texts").iterdir())) == 2, "and the same file, for the same field"


def test_progress_is_reported_while_it_yields(mine, tmp_path: Path) -> None:
    reports: list[PrepareProgress] = []
    prepared(data(f"{mine(COUNTED)}:source"), tmp_path / "store", progress=reports.append)
    collected = [state for state in reports if state.phase == "collecting"]
    assert collected[-1].done == next((tmp_path / "store" / "texts").iterdir()).stat().st_size
    assert reports.index(collected[-1]) < next(i for i, state in enumerate(reports) if state.phase == "reading")


def test_it_can_stand_beside_files(mine, tmp_path: Path, books: Path) -> None:
    both = prepared(data(f"{mine(COUNTED)}:source", str(books)), tmp_path / "store")
    assert both.index.documents == 400 + 4


def test_prepare_into_a_folder_keeps_the_texts_with_the_tokens(mine, tmp_path: Path) -> None:
    location = f"{mine(COUNTED)}:source"
    made = prepare(data(location), tmp_path / "out")
    assert made.index.documents == 400
    assert len(list((tmp_path / "out" / "texts").glob("*.jsonl"))) == 1
    assert prepare(data(location), tmp_path / "out").key == made.key


def run_overrides(location: str) -> list[str]:
    return [
        f"data.path=[{location}]", "data.tokenizer.train=300", "model={layers: 1, heads: 1, width: 16, context: 16}",
        "batch={sequences: 4, length: 16}", "until.steps=10", "name=tale",
    ]  # fmt: skip


def test_a_run_calls_the_function_once_and_resumes_with_its_texts(mine, tmp_path: Path) -> None:
    name = mine(COUNTED)
    spec = load(None, run_overrides(f"{name}:source")).spec
    first = begin(spec, runs=tmp_path / "runs")
    (tmp_path / f"{name}.py").unlink()
    resumed = begin(spec, runs=tmp_path / "runs")
    assert (resumed.tokens.path, resumed.tokens.key) == (first.tokens.path, first.tokens.key)
    assert (tmp_path / "asked").read_text() == "x"
    assert events_of(resumed.run) == [], "nothing is gone that was ever there"


def test_a_run_whose_tokens_are_missing_calls_again_and_resumes_only_with_the_same(mine, tmp_path: Path) -> None:
    spec = load(None, run_overrides(f"{mine(COUNTED)}:source")).spec
    first = begin(spec, runs=tmp_path / "runs")
    for file in first.tokens.path.glob("*.json"):
        file.unlink()
    assert begin(spec, runs=tmp_path / "runs").tokens.key == first.tokens.key
    assert (tmp_path / "asked").read_text() == "xx"


@pytest.mark.parametrize(
    ("body", "phrases"),
    [
        ("    yield 'a'\n    yield 7", ["its item 2 is of type int, not a text", "Yield texts"]),
        ("    yield b'a'", ["its item 1 is of type bytes, not a text"]),
        ("    yield None", ["its item 1 is of type NoneType, not a text"]),
        ("    yield {'body': 'a'}", ["its item 1 has no field 'text' (it has: body)"]),
        ("    yield {'text': 3}", ["its item 1 has no text in field 'text' but int"]),
        ("    yield 'a'\n    yield '\\ud800'", ["its item 2 has half a surrogate pair"]),
        ("    yield 'a'\n    raise OSError('the tape tore')", ["it fails: OSError: the tape tore (", ".py, line 3)"]),
        ("    yield 'a'\n    import json\n    yield json.loads('{')", ["JSONDecodeError", ".py, line 4)"]),
        ("    return 'one text'", ["it returned a value of type str, not texts"]),
        ("    return None", ["it returned a value of type NoneType, not texts"]),
        ("    return {'text': 'a'}", ["it returned a value of type dict, not texts"]),
        ("    return iter(())", ["it yields nothing"]),
        ("    exit(3)", ["it fails: SystemExit: 3"]),
    ],
)
def test_errors_of_the_function_are_one_line_and_leave_no_partial_files(
    mine, tmp_path: Path, body: str, phrases: list[str]
) -> None:
    location = f"{mine(f'def source():{chr(10)}{body}{chr(10)}')}:source"
    with pytest.raises(UserError) as caught:
        prepared(data(location), tmp_path / "store")
    line = str(caught.value)
    assert line.startswith(f"data.path names {location}, and ")
    assert [phrase for phrase in phrases if phrase not in line] == [], line
    assert "\n" not in line
    assert list((tmp_path / "store" / "texts").iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def source(folder): yield 'a'", "TypeError: source\\(\\) missing 1 required positional argument"),
        ("source = 7", "it is of type int, not a function"),
        ("def other(): ...", "has no source"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_function_that_cannot_be_called_is_reported(mine, tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        prepared(data(f"{mine(text)}:source"), tmp_path / "store")
    assert not (tmp_path / "store" / ".hashes.json").exists()


def test_items_that_are_no_text_are_skipped_and_counted_on_request(mine, tmp_path: Path) -> None:
    name = mine("def source():\n    yield from ['the sea was calm ' * 50, None, {'x': 1}, 'and so was I ' * 50, 7]\n")
    made = prepared(data(f"{name}:source", skip_bad=True), tmp_path / "store")
    assert (made.index.documents, made.index.skipped) == (2, 3)
