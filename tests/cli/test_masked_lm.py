"""A masked model from the command line: trained on text or HDF5, evaluated, filled in, exported and imported."""

import json
from pathlib import Path

import pytest
from transformers import AutoModelForPreTraining, BertForPreTraining

from stoker.cli.main import main
from stoker.data.bert.pairs import PairSet
from stoker.models.load import load_model
from stoker.rundir import RunDir
from tests.written import events_of

TINY = [
    "model.family=bert", "model.layers=2", "model.heads=2", "model.width=32", "model.context=32", "batch.length=32",
    "batch.sequences=4", "precision=fp32", "until.steps=6", "on.workers=1", "on.device=cpu", "eval.sequences=9",
]  # fmt: skip


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(list(arguments)) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


@pytest.fixture
def workdir(stoker, pairs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run, as the current one."""
    stoker("train", "name=fills", f"data={pairs}", *TINY)
    monkeypatch.chdir(stoker.folder)
    return stoker.folder


def test_a_masked_model_works_with_every_verb(workdir: Path, pairs: Path, books: Path, hub, capsys) -> None:
    run = RunDir(workdir / "runs" / "fills")
    assert not [event for event in events_of(run) if event["kind"] == "sample"]

    same = json.loads(output_of(capsys, "eval", "fills", "--sequences", "9", "--json"))
    assert same["loss"] == pytest.approx(run.metrics()[-1]["val_loss"], abs=1e-6)
    assert same["loss"] == pytest.approx(same["loss_mlm"] + same["loss_nsp"])
    whole = output_of(capsys, "eval", "fills", "--data", str(books / "book-0.txt"))
    assert "masked words predicted correctly" in whole
    assert "next sentences classified correctly" in whole
    assert json.loads(output_of(capsys, "eval", "fills", "--data", str(pairs), "--json"))["sequences"] > 9
    for number, short in enumerate(("\n", "coal", "the stoker feeds the boiler.")):
        (workdir / f"{number}.txt").write_text(short)
        message = output_of(capsys, "eval", "fills", "--data", f"{number}.txt", "--json", code=2)
        assert len(message.splitlines()) == 1, message
    hub().write("datasets/owner/name/a.txt", (books / "book-0.txt").read_bytes())
    local, remote = (
        json.loads(output_of(capsys, "eval", "fills", "--data", path, "--json"))
        for path in (str(books / "book-0.txt"), "hf://datasets/owner/name")
    )
    assert (remote["loss"], remote["sequences"]) == (local["loss"], local["sequences"])

    prompt = "the stoker [MASK] a heap of [MASK]."
    text = output_of(capsys, "generate", "fills", prompt)
    assert text.startswith("the stoker")
    assert "[MASK]" not in text
    filled = json.loads(output_of(capsys, "generate", "fills", prompt, "--json"))
    assert [len(row) for row in filled["masks"]] == [5, 5]
    assert filled["text"] + "\n" == text
    assert filled["masks"][0][0]["probability"] >= filled["masks"][0][1]["probability"]
    assert "there is no [MASK] in the prompt 'nothing'" in output_of(capsys, "generate", "fills", "nothing", code=2)

    exported = json.loads(output_of(capsys, "export", "fills", "-o", "out", "--json", "--require-proof"))
    assert (exported["verdict"], exported["masked"]["equal"], "greedy" in exported) == ("proven", True, False)
    assert isinstance(AutoModelForPreTraining.from_pretrained(workdir / "out"), BertForPreTraining)
    assert "fill-mask" in (workdir / "out" / "README.md").read_text()
    output_of(capsys, "import", "out", "--name", "back")
    original, back = (load_model(workdir / "runs" / name, device="cpu") for name in ("fills", "back"))
    assert all((a == b).all() for a, b in zip(original.model.parameters(), back.model.parameters(), strict=True))
    assert output_of(capsys, "generate", "back", prompt) == text


def test_hdf5_files_without_a_tokenizer_train_and_are_proven(stoker, books: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(stoker.folder)
    arguments = ["--pairs", "32", "--hdf5", "--tokenizer", "300", "--predictions", "6", "--workers", "1"]
    assert "to train on" in output_of(capsys, "prepare", str(books), "-o", "files", *arguments)
    vocab = len((stoker.folder / "files" / "tokenizer" / "vocab.txt").read_text().splitlines())
    stoker("train", "name=h", "data=files", f"model.vocab={vocab}", *TINY)
    assert json.loads(output_of(capsys, "audit", "h", "--json"))["ok"]
    view = json.loads(output_of(capsys, "replay", "h", "--step", "2", "--no-loss", "--json"))
    assert view["in_shards"]
    assert view["samples"][0]["documents"][0]["text"].split()[0].isdigit()
    judged = json.loads(output_of(capsys, "eval", "h", "--data", "files", "--json"))
    assert judged["sequences"] > 100
    assert PairSet.open(Path(stoker.run("h").data().shards)).index.predictions == 6
    assert "has no tokenizer" in output_of(capsys, "generate", "h", "a [MASK]", code=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hdf5"], "--hdf5 writes sentence pairs"),
        (["--pairs", "4"], "--pairs is 4"),
        (["--pairs", "32", "--hdf5", "--predictions", "0"], "--predictions is 0"),
    ],
)
def test_prepare_refuses_invalid_options_for_pairs(
    tmp_path: Path, books: Path, capsys, arguments: list[str], message: str
) -> None:
    assert message in output_of(capsys, "prepare", str(books), "-o", str(tmp_path / "x"), *arguments, code=2)
    assert not (tmp_path / "x").exists()
