"""`stoker eval` on a real run: its held-out text, other text, and mistakes."""

import json
import re
import shutil
from pathlib import Path

import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from stoker.cli.main import main
from stoker.data.sets import open_set
from stoker.models.gpt2 import SPEC
from stoker.models.load import load_model
from stoker.rundir import DataRef, RunDir
from tests.flip import flip

pytestmark = pytest.mark.usefixtures("tale")

TEXT = "the stoker feeds the boiler. a heap of coal warms the old engine.\n" * 30


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the test, with a run and some text, as the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text(TEXT)
    return tmp_path


def evaluate(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main(["eval", *arguments, "--json"]) == 0
    result: dict[str, object] = json.loads(capsys.readouterr().out)
    return result


def test_the_default_is_the_runs_own_held_out_text(workdir: Path, tokens: Path, capsys) -> None:
    logged_loss = RunDir(workdir / "runs" / "tale").metrics()[-1]["val_loss"]
    same = evaluate(capsys, "tale", "--sequences", "5")
    assert same["loss"] == pytest.approx(logged_loss, abs=1e-6)
    assert (same["sequences"], same["tokens"], same["step"], same["precision"]) == (5, 160, 40, "fp32")
    whole = evaluate(capsys, "tale")
    assert whole["tokens"] > same["tokens"]
    assert whole["loss"] == pytest.approx(logged_loss, rel=0.2)
    assert whole["bits_per_byte"] < whole["loss"] / 0.6931
    assert evaluate(capsys, "tale", "--data", str(tokens))["loss"] == whole["loss"]
    trained_on = evaluate(capsys, "tale", "--split", "train", "--sequences", "20")
    assert trained_on["tokens"] == 640


def test_a_copy_from_a_volume_is_evaluated_and_audited_with_its_token_set(workdir: Path, tokens: Path, capsys) -> None:
    copy = RunDir(shutil.copytree(workdir / "runs" / "tale", workdir / "copy"))
    key = copy.data().key
    copy.write_data(DataRef(shards=f"/stoker/data/{key}", key=key))
    assert main(["eval", "./copy"]) == 2
    assert f"/stoker/data/{key} is missing. Copy it from the run's volume" in capsys.readouterr().err
    shutil.copytree(tokens, copy.path / "data" / key)
    copied = evaluate(capsys, "./copy", "--sequences", "5")
    assert copied["loss"] == evaluate(capsys, "tale", "--sequences", "5")["loss"]
    assert main(["audit", "./copy", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 40


def test_any_text_is_evaluated_and_no_file_is_written(workdir: Path, capsys) -> None:
    before = sorted(path.name for path in workdir.rglob("*"))
    result = evaluate(capsys, "tale", "--data", "book.txt", "--length", "16")
    assert result["bytes"] == pytest.approx(len(TEXT), abs=10)
    assert result["perplexity"] < 100
    (workdir / "more").mkdir()
    (workdir / "more" / "a.jsonl").write_text(json.dumps({"text": TEXT}) + "\n")
    both = evaluate(capsys, "tale", "--data", "book.txt", "more/*.jsonl", "--step", "best")
    assert both["tokens"] == 2 * result["tokens"] + 1
    after = sorted(path.name for path in workdir.rglob("*"))
    assert after == sorted([*before, "more", "a.jsonl"])


def test_a_transformers_folder_is_evaluated_and_has_no_data_of_its_own(workdir: Path, capsys) -> None:
    loaded = load_model(workdir / "runs" / "tale", device="cpu")
    config = GPT2Config(n_layer=2, n_head=2, n_embd=32, n_positions=32, vocab_size=300, eos_token_id=0, bos_token_id=0)
    hf_model = GPT2LMHeadModel(config)
    hf_model.load_state_dict(SPEC.to_hf(loaded.model.state_dict()), strict=False)
    hf_model.save_pretrained(workdir / "hf")
    assert main(["eval", "hf"]) == 2
    assert "has no data of its own. Name some: --data FILE" in capsys.readouterr().err
    assert main(["eval", "hf", "--data", "book.txt"]) == 2
    assert "has no tokenizer" in capsys.readouterr().err
    arguments = ["--data", "book.txt", "--tokenizer", "runs/tale/tokenizer"]
    assert evaluate(capsys, "hf", *arguments)["loss"] == evaluate(capsys, "tale", *arguments)["loss"]


def test_output_in_a_pipe_and_in_a_terminal(stoker, terminal, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(TEXT)
    output = stoker("eval", "tale", "--data", "book.txt").stdout
    for name in ("model", "data", "loss", "perplexity", "bits/byte", "tokens"):
        assert re.search(rf"^  {name} +\S", output, re.MULTILINE), name
    assert "\x1b" not in output
    screen = terminal("eval", "tale", "--data", "book.txt")
    loss = re.search(r"loss +(\S+)", output)
    assert loss is not None
    assert loss[1] in screen.read()
    assert screen.process.wait() == 0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["tael"], "Did you mean tale"),
        (["tale", "--sequences", "0"], "--sequences is 0"),
        (["tale", "--length", "-4"], "--length is -4"),
        (["tale", "--length", "33"], r"--length is 33, and the model reads 32 tokens at most\. Give 32 or less"),
        (["tale", "--data", "none.txt"], r"none\.txt does not exist"),
        (["tale", "--data", "empty.txt"], r"empty\.txt is empty"),
        (["tale", "--data", "newline.txt"], "the text is too short.*Name a longer text"),
        (["tale", "--data", "letter.txt"], "the text is too short"),
        (["tale", "--data", ""], "--data is empty"),
        (["tale", "--data", "latin.txt"], "is not UTF-8 text"),
        (["tale", "--data", "book.txt", "--split", "train"], "--split is for prepared sets"),
        (["tale", "--data", "word.txt", "--sequences", "3"], "not one sequence of 32"),
        (["tale", "--data", "other"], "prepared with another tokenizer"),
        (["bare", "--data", "book.txt"], r"has no tokenizer\. .*--tokenizer DIR"),
        (
            ["bare", "--data", "book.txt", "--tokenizer", "other/tokenizer"],
            r"token ids up to 399, and the model has 300 tokens",
        ),
        (["moved"], "is missing"),
        (["damaged"], "validation-.* is damaged: its sha256"),
        (["tale", "--task", "choice", "--data", "empty.txt"], "is empty"),
        (["tale", "--task", "choice", "--data", "blank.jsonl"], r"blank\.jsonl:1 has an empty choice"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_a_mistake_is_one_line_with_a_remedy(
    workdir: Path, tokens: Path, capsys, arguments: list[str], problem: str
) -> None:
    (workdir / "empty.txt").write_text("")
    (workdir / "newline.txt").write_text("\n")
    (workdir / "letter.txt").write_text("c")
    (workdir / "word.txt").write_text("coal")
    (workdir / "latin.txt").write_bytes("é".encode("latin-1"))
    if "other" in " ".join(arguments):
        letters = "".join(chr(0x100 + n % 500) for n in range(4000))
        (workdir / "letters.txt").write_text(f"{letters} {TEXT}")
        assert main(["prepare", "letters.txt", "-o", "other", "--tokenizer", "400", "--validation", "10%"]) == 0
    shutil.rmtree(shutil.copytree(workdir / "runs" / "tale", workdir / "runs" / "bare") / "tokenizer")
    shutil.copytree(workdir / "runs" / "tale", workdir / "runs" / "moved")
    (workdir / "runs" / "moved" / "data.json").write_text('{"shards": "/nowhere/at/all", "key": "k"}')
    (workdir / "blank.jsonl").write_text('{"context": "the", "choices": ["stoker", ""], "answer": 0}\n')
    if "damaged" in arguments:
        _damage(workdir, tokens)
    capsys.readouterr()
    assert main(["eval", *arguments, "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert re.search(problem, captured.err), captured.err


def _damage(workdir: Path, tokens: Path) -> None:
    """Creates a run `damaged` whose held-out text has changed by a bit."""
    damaged = RunDir(shutil.copytree(workdir / "runs" / "tale", workdir / "runs" / "damaged"))
    shards = Path(shutil.copytree(tokens, workdir / "shards"))
    damaged.write_data(DataRef(shards=str(shards), key=damaged.data().key))
    flip(next(file.path for file in open_set(shards).validation.files()))
