import shlex
from pathlib import Path

import pytest

from stoker.cli.main import main
from stoker.data.shards import TokenSet
from stoker.spec.load import load


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.jsonl"
    path.write_text(
        "".join(f'{{"body": "It was day {i}, and the sea was calm."}}\n' for i in range(200)) + "not json\n"
    )
    return path


def test_prepare_writes_a_token_set_that_training_can_open(
    tmp_path: Path, book: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--tokenizer", "0.3k", "--field", "body", "--validation", "10%", "--skip-bad", "--workers", "1"]
    assert main(["prepare", str(book), "-o", str(tmp_path / "out"), *arguments]) == 0
    tokens = TokenSet.open(tmp_path / "out")
    assert tokens.vocab == 300
    assert tokens.index.documents == 200
    assert tokens.index.skipped == 1
    assert 0.05 < tokens.validation.tokens / tokens.train.tokens < 0.15
    out = capsys.readouterr().out
    assert "1 record skipped" in out
    assert f"stoker init {tmp_path / 'out'}" in out


def test_a_file_name_may_have_any_characters(tmp_path: Path, book: Path) -> None:
    path = book.rename(tmp_path / '\N{FIRE} it\'s "é".jsonl')
    arguments = ["--field", "body", "--skip-bad", "--tokenizer", "300", "--workers", "1"]
    assert main(["prepare", str(path), "-o", str(tmp_path / "out"), *arguments]) == 0
    assert TokenSet.open(tmp_path / "out").index.documents == 200


def test_a_bad_record_is_named_by_file_and_line(tmp_path: Path, book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", str(book), "-o", str(tmp_path / "out"), "--field", "body", "--workers", "1"]) == 2
    err = capsys.readouterr().err
    assert "book.jsonl" in err
    assert "201" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--validation", "2"], ["--tokenizer", "12"], ["--tokenizer", "./none"]])
def test_a_wrong_value_is_one_line(
    tmp_path: Path, book: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", str(book), "-o", str(tmp_path / "out"), *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("workers", ["0", "-1"])
def test_fewer_than_one_worker_is_refused_in_one_line(
    tmp_path: Path, book: Path, workers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", str(book), "-o", str(tmp_path / "out"), "--workers", workers]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"stoker: --workers is {workers}. ")
    assert not (tmp_path / "out").exists()


def test_the_next_command_can_be_typed_as_printed(
    tmp_path: Path, book: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["prepare", str(book), "-o", "my tokens", "--field", "body", "--skip-bad", "--workers", "1"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  next ")]
    arguments = shlex.split(line)[1:]
    assert arguments == ["stoker", "init", "my tokens"]
    assert main([*arguments[1:], "-o", "my run.yaml"]) == 0
    assert "next: stoker train 'my run.yaml'" in capsys.readouterr().out
    spec = load(tmp_path / "my run.yaml", []).spec
    assert (spec.name, spec.data.path) == ("my-tokens", str(tmp_path / "my tokens"))
