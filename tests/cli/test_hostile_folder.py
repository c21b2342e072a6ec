"""A malicious transformers folder is refused at once, in one line and with exit code 2."""

import io
import json
import shutil
import struct
import zipfile
from pathlib import Path

import pytest
import torch

from stoker.data.tokenizer import load_folder
from stoker.spec.errors import UserError
from stoker.spec.hf_config import read_shape
from tests.inside import inside

SIZES = {"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 8, "n_positions": 8, "vocab_size": 300}
HEADER = {"wte.weight": {"dtype": "F32", "shape": [300, 8], "data_offsets": [0, 9600]}}
LLAMA = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "vocab_size": 300}


@pytest.fixture
def folder(tmp_path: Path, tokens: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    folder = tmp_path / "hf"
    shutil.copytree(tokens / "tokenizer", folder)
    (folder / "config.json").write_text(json.dumps(SIZES))
    write_header(folder, json.dumps(HEADER).encode())
    return folder


def write_header(folder: Path, header: bytes, *, size: int | None = None, body: int = 9600) -> None:
    length = struct.pack("<Q", len(header) if size is None else size)
    (folder / "model.safetensors").write_bytes(length + header + bytes(body))


def refused(*arguments: str) -> str:
    done = inside(*arguments, code=2)
    (line,) = done.stderr.splitlines()
    assert len(line) < 1000, line
    return line


CONFIGS = {
    "deep": "[" * 100_000,
    "deep object": '{"a":' * 5000 + "1" + "}" * 5000,
    "long integer": json.dumps(SIZES)[:-1] + f', "n_layer": {"9" * 5000}}}',
    "large integer": json.dumps(SIZES | {"n_layer": 10**18}),
    "many parameters": json.dumps(SIZES | {"vocab_size": 2**32, "n_layer": 2**16, "n_embd": 2**20}),
    "huge float": json.dumps(SIZES)[:-1] + ', "initializer_range": 1e999}',
    "not a number": json.dumps(SIZES)[:-1] + ', "initializer_range": NaN}',
    "text for a number": json.dumps(SIZES | {"n_embd": "wide"}),
    "list for a number": json.dumps(SIZES | {"n_head": [1]}),
    "negative": json.dumps(SIZES | {"n_head": -1}),
    "null": json.dumps(SIZES | {"n_layer": None}),
    "long text": json.dumps(SIZES | {"model_type": "x" * 100_000}),
    "long value": json.dumps(SIZES | {"activation_function": ["x"] * 100_000}),
    "half a character": '{"model_type": "\\ud800"}',
    "shared heads": json.dumps(LLAMA | {"num_attention_heads": 10**15, "num_key_value_heads": 10**15 - 1}),
    "turns": json.dumps(LLAMA | {"rope_parameters": {"rope_type": "llama3", "factor": "x", "rope_theta": []}}),
}


@pytest.mark.parametrize("text", CONFIGS.values(), ids=CONFIGS)
def test_a_malformed_config_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    assert str(folder.name) in refused("generate", "hf", "the")


@pytest.mark.parametrize(
    ("header", "size"),
    [
        (b"[" * 100_000, None),
        (b'{"a":' * 100_000, None),
        (json.dumps(HEADER).encode()[:-3] + b"9" * 5000 + b"]}}", None),
        (json.dumps({"wte.weight": {"dtype": "F32", "shape": [2**62, 8], "data_offsets": [0, 9600]}}).encode(), None),
        (json.dumps({"wte.weight": {"dtype": "F32", "shape": [-1], "data_offsets": [0, -9600]}}).encode(), None),
        (json.dumps({"wte.weight": 5}).encode(), None),
        (b"{}", 2**63),
        (b"{}", 2**40),
        (b"", None),
    ],
    ids=str,
)
def test_a_malformed_safetensors_header_is_refused(folder: Path, header: bytes, size: int | None) -> None:
    write_header(folder, header, size=size)
    assert "model.safetensors cannot be read as tensors" in refused("generate", "hf", "the")


@pytest.mark.parametrize(
    "arguments",
    [
        ("eval", "hf", "--data", "x.txt"),
        ("import", "hf", "--name", "new"),
        ("train", "data=x.txt", "init=hf"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_every_verb_refuses_a_malformed_config(folder: Path, arguments: tuple[str, ...]) -> None:
    (folder / "config.json").write_text(CONFIGS["deep"])
    end = ["until.steps=1"] if arguments[0] == "train" else []
    assert "config.json cannot be read: it is nested deeper than" in refused(*arguments, *end)


def test_compressed_weights_are_refused(folder: Path) -> None:
    """A small file could expand to all memory."""
    (folder / "model.safetensors").unlink()
    plain = io.BytesIO()
    torch.save({"wte.weight": torch.rand(300, 8)}, plain)
    with (
        zipfile.ZipFile(plain) as old,
        zipfile.ZipFile(folder / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry))
        new.writestr("filler", b"", zipfile.ZIP_STORED)
    (folder / "config.json").write_text(json.dumps(SIZES | {"vocab_size": 30}))
    assert "compressed" in refused("generate", "hf", "the")


@pytest.mark.parametrize(
    "config",
    [
        '{"eos_token_id": 99999999999}',
        '{"eos_token_id": -1}',
        '{"bos_token": "$A $A", "add_bos_token": true}',
        '{"bos_token": {"content": []}, "eos_token": {}}',
        "[" * 100_000,
        "9" * 5000,
    ],
    ids=lambda text: text[:30],
)
def test_a_malformed_tokenizer_config_is_ignored(folder: Path, config: str) -> None:
    (folder / "tokenizer_config.json").write_text(config)
    assert load_folder(folder).end == "<|endoftext|>"


@pytest.mark.parametrize("text", ["[" * 100_000, "{}", "", '{"model": {"type": "BPE", "vocab": 5}}', "9" * 5000])
def test_a_malformed_tokenizer_is_refused(folder: Path, text: str) -> None:
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(UserError, match="cannot be read"):
        load_folder(folder)


def test_a_tokenizer_of_a_terabyte_is_refused(folder: Path) -> None:
    with open(folder / "tokenizer.json", "wb") as file:
        file.truncate(1 << 40)  # sparse: takes no space
    with pytest.raises(UserError, match="is larger than 256 MiB"):
        load_folder(folder)


def test_a_valid_folder_is_read(folder: Path) -> None:
    assert read_shape(folder).vocab == 300
