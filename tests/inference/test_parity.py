"""The check of an exported folder: `proven` only after a comparison, and changes are detected."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from stoker.inference.export import export
from stoker.inference.parity import check, prove
from stoker.models.load import load_model


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tokens: Path) -> Path:
    folder = tmp_path_factory.mktemp("made")
    torch.manual_seed(1)
    GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=32, n_positions=33, vocab_size=300)).save_pretrained(folder)
    shutil.copy(tokens / "tokenizer" / "tokenizer.json", folder)
    return export(load_model(folder, device="cpu"), folder / "out", require_proof=True).folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "out"))


def rewrite(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_change_after_the_export_is_detected(folder: Path) -> None:
    assert check(folder)["verdict"] == "proven"
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-4] + b"\0\0\0\x40")
    record = check(folder)
    assert (record["verdict"], record["problems"]) == (
        "failed",
        ["model.safetensors has changed since it was exported"],
    )
    weights.write_bytes(whole)
    (folder / "README.md").unlink()
    assert check(folder)["problems"] == ["README.md is missing"]
    rewrite(folder / "stoker.json", files=5)
    assert check(folder)["problems"] == ["stoker.json is damaged"]


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("special_tokens_map.json", {"eos_token": "!"}, "ends a document with"),
        ("config.json", {"layer_norm_epsilon": 0.1}, "layer_norm_epsilon is 0.1"),
        ("config.json", {"n_layer": 1}, "has the unknown transformer.h.1."),
    ],
)
def test_a_folder_that_computes_something_else_fails(
    folder: Path, file: str, changes: dict[str, object], message: str
) -> None:
    (folder / "stoker.json").unlink()
    rewrite(folder / file, **changes)
    record = check(folder)
    assert record["verdict"] == "failed"
    assert message in " ".join(record["problems"])


def test_a_folder_that_transformers_cannot_load_fails(folder: Path) -> None:
    (folder / "stoker.json").unlink()
    rewrite(folder / "generation_config.json", num_beams="many")
    (folder / "tokenizer_config.json").write_text("{")
    record = check(folder)
    assert record["verdict"] == "failed"
    assert "transformers cannot load it" in record["problems"][-1]


def test_without_transformers_the_verdict_and_exit_code_are_unproven(folder: Path, tmp_path: Path) -> None:
    hide(tmp_path / "hidden", "raise ImportError('no such thing here')")
    code, record = run_check(folder, tmp_path / "hidden")
    assert (code, record["verdict"]) == (2, "unproven")
    assert record["problems"] == ["transformers cannot be imported: no such thing here"]
    (folder / "model.safetensors").write_bytes(b"")
    code, record = run_check(folder, tmp_path / "hidden")
    assert (code, record["verdict"]) == (3, "failed")


def test_a_check_that_crashes_proves_nothing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(tmp_path / "hidden", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "hidden"))
    record = prove(folder)
    assert record["verdict"] == "unproven"
    assert "ended with code -9" in record["problems"][0]


def test_a_copy_in_another_folder_is_proven_too(folder: Path, tmp_path: Path) -> None:
    shutil.move(folder, tmp_path / "else where")
    code, record = run_check(tmp_path / "else where", tmp_path)
    assert (code, record["verdict"]) == (0, "proven")


def hide(place: Path, body: str) -> None:
    """A module that is imported instead of transformers."""
    place.mkdir()
    (place / "transformers.py").write_text(body + "\n")


def run_check(folder: Path, path: Path) -> tuple[int, dict[str, object]]:
    command = [sys.executable, "-m", "stoker.inference.parity", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(path), "PATH": ""})
    return done.returncode, json.loads(done.stdout.splitlines()[-1])
