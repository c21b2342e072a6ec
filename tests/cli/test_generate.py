"""`stoker generate` on a real run: in a pipe, in a terminal, and with mistakes."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from stoker.cli.main import main
from stoker.models.gpt2 import SPEC
from stoker.models.load import load_model

pytestmark = pytest.mark.usefixtures("tale")

STOKER = [sys.executable, "-m", "stoker"]


@pytest.fixture
def generate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs the verb in this process, in the folder of the test; returns its output."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        assert main(["generate", *arguments]) == 0
        return capsys.readouterr().out

    return run


def test_a_prompt_is_continued_the_same_way_from_a_run_a_step_and_a_checkpoint(generate, tale: Path) -> None:
    arguments = [
        "the stoker",
        "--tokens",
        "30",
        "--temperature",
        "1",
        "--seed",
        "3",
    ]  # with temperature 0, two steps may generate the same
    text = generate("tale", *arguments)
    assert text.startswith("the stoker")
    assert len(text) > 40
    assert generate(str(tale), *arguments) == text
    assert generate("tale", *arguments, "--step", "40") == text
    assert generate(str(tale / "checkpoints" / "step-000000040"), *arguments, "--device", "cpu") == text
    assert generate("tale", *arguments, "--step", "20") != text
    assert generate("tale", *arguments, "--step", "best")
    assert generate("tale", *arguments, "--tokenizer", str(tale / "tokenizer")) == text


def test_a_transformers_folder_is_used_too(generate, tale: Path, tmp_path: Path) -> None:
    loaded = load_model(tale, device="cpu")
    config = GPT2Config(n_layer=2, n_head=2, n_embd=32, n_positions=32, vocab_size=300, eos_token_id=0, bos_token_id=0)
    hf_model = GPT2LMHeadModel(config)
    hf_model.load_state_dict(SPEC.to_hf(loaded.model.state_dict()), strict=False)
    hf_model.save_pretrained(tmp_path / "hf")
    shutil.copytree(tale / "tokenizer", tmp_path / "hf", dirs_exist_ok=True)
    arguments = ["the stoker", "--tokens", "30", "--temperature", "0"]
    assert generate("hf", *arguments) == generate("tale", *arguments)


def test_prompts_are_read_from_a_file_and_from_a_pipe(generate, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("the stoker\n\na boiler\r\n")
    common = ["tale", "--tokens", "8", "--samples", "2", "--json"]
    records = [json.loads(line) for line in generate(*common, "--file", "prompts.txt").splitlines()]
    assert [(r["prompt"], r["sample"]) for r in records] == [
        ("the stoker", 0), ("the stoker", 1), ("a boiler", 0), ("a boiler", 1),
    ]  # fmt: skip
    assert all(r.keys() == {"prompt", "sample", "text", "tokens", "finish", "seconds"} for r in records)
    assert all((r["tokens"] == 8) is (r["finish"] == "length") for r in records)
    piped = subprocess.run(
        [*STOKER, "generate", *common], cwd=tmp_path, input=b"the stoker\na boiler", capture_output=True, check=True
    )
    texts = [record["text"] for record in records]
    assert [json.loads(line)["text"] for line in piped.stdout.splitlines()] == texts
    assert json.loads(generate(*common, "a boiler").splitlines()[0])["text"] == texts[2]


def test_without_a_prompt_a_document_is_started(tmp_path: Path) -> None:
    nothing = subprocess.run(
        [*STOKER, "generate", "tale", "--json"], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, check=True
    )
    record = json.loads(nothing.stdout)
    assert record["prompt"] == ""
    assert record["tokens"] > 0


def test_several_texts_are_shown_one_after_another_and_a_stop_word_ends_each(generate) -> None:
    arguments = ["the stoker", "a boiler", "--tokens", "150", "--temperature", "0.01", "--top-k", "3", "--top-p", "0.9"]
    output = generate("tale", *arguments, "--stop", ".", "--seed", "5").split("--- ")
    assert [part.split("\n")[0] for part in output[1:]] == ["1 of 2", "2 of 2"]
    assert [part.split("\n")[1][:8] for part in output[1:]] == ["the stok", "a boiler"]
    assert "." not in "".join(output)


def test_a_pipe_receives_the_text_as_it_is_generated(stoker) -> None:
    process = stoker.start("generate", "tale", "the stoker", "--tokens", "20000", "--temperature", "1")
    assert process.stdout is not None
    first = os.read(process.stdout.fileno(), 11)
    assert first.startswith(b"the stoker")
    assert process.poll() is None, "the text must be longer for this test to prove anything"
    process.stdout.close()
    process.stdout = None
    assert process.wait() == 0, "a closed pipe is no error"


def test_a_terminal_receives_the_text_without_control_characters(terminal) -> None:
    output = terminal("generate", "tale", "the \x07stoker", "--tokens", "20")
    assert output.read().startswith(r"the \x07stoker")
    assert "\x1b" not in output.text
    assert output.process.wait() == 0


def test_ctrl_c_ends_it(terminal) -> None:
    writing = terminal("generate", "tale", "the stoker", "--tokens", "1000000", "--temperature", "1")
    writing.read(until="the stoker")
    assert writing.interrupt() == 130


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["tael", "x"], "there is no run 'tael' in .* Did you mean tale"),
        (["tale", "--temperature", "-1"], "temperature is -1"),
        (["tale", "--top-p", "0"], "top-p is 0"),
        (["tale", "--top-p", "1.1"], r"top-p is 1\.1"),
        (["tale", "--top-k", "0"], "top-k is 0"),
        (["tale", "--tokens", "0"], "tokens is 0"),
        (["tale", "--samples", "0"], "samples is 0"),
        (["tale", "--stop", ""], "a stop word is empty"),
        (["tale", "--step", "last"], "--step is last"),
        (["tale", "--step", "39", "x"], "no checkpoint of step 39"),
        (["tale", "--device", "abacus", "x"], "'abacus' is not a device"),
        (["tale", "--file", "none.txt"], r"cannot read none\.txt"),
        (["tale", "--file", "empty.txt"], r"empty\.txt has no prompts"),
        (["tale", "--file", "latin.txt"], "not UTF-8"),
        (["tale", "x", "--tokenizer", "./nowhere"], "nowhere does not exist"),
        (["bare", "x"], r"has no tokenizer\. .*--tokenizer DIR"),
        (["empty", "x"], "holds no model"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_a_mistake_is_one_line_with_a_remedy(
    tale: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    problem: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1"))
    (tmp_path / "empty").mkdir()
    shutil.rmtree(shutil.copytree(tale, tmp_path / "runs" / "bare") / "tokenizer")
    assert main(["generate", *arguments]) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert re.search(problem, captured.err), captured.err
