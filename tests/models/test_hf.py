"""Folders in the format of transformers, read and written, compared with transformers itself."""

import json
import os
import pickle
import random
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from stoker.models import hf
from stoker.models.build import new_model
from stoker.models.load import load_model
from stoker.spec import hf_config
from stoker.spec.errors import UserError
from stoker.spec.model import Model

ODD = {"n_layer": 2, "n_head": 3, "n_embd": 60, "n_positions": 33, "vocab_size": 101}


def reference(folder: Path, *, shard: str = "5GB", **config: object) -> GPT2LMHeadModel:
    torch.manual_seed(5)
    model = GPT2LMHeadModel(GPT2Config(**{**ODD, "initializer_range": 0.3, **config})).eval()
    model.save_pretrained(folder, max_shard_size=shard)
    return model


def tokens() -> torch.Tensor:
    return torch.randint(ODD["vocab_size"], (3, ODD["n_positions"]), generator=torch.Generator().manual_seed(2))


def as_bin(folder: Path) -> Path:
    """The same folder as older versions of transformers wrote it."""
    torch.save(GPT2LMHeadModel.from_pretrained(folder).state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder


@pytest.mark.parametrize(
    "config",
    [{}, {"reorder_and_upcast_attn": True}, {"scale_attn_by_inverse_layer_idx": True}, {"n_inner": 100}],
    ids=["plain", "upcast", "scaled", "inner"],
)
def test_a_model_of_odd_shape_gives_the_references_logits(tmp_path: Path, config: dict[str, object]) -> None:
    theirs = reference(tmp_path, **config)
    ours = load_model(tmp_path, device="cpu")
    assert (ours.shape.heads, ours.shape.width, ours.shape.context, ours.shape.vocab) == (3, 60, 33, 101)
    assert (ours.tokenizer, ours.run, ours.step) == (None, None, None)
    with torch.no_grad():
        assert torch.allclose(ours.model(tokens()), theirs(tokens()).logits, rtol=1e-5, atol=1e-4)


def test_shards_and_bin_files_hold_the_same_model(tmp_path: Path) -> None:
    reference(tmp_path / "whole")
    wanted = load_model(tmp_path / "whole", device="cpu").model.state_dict()
    reference(tmp_path / "shards", shard="50KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    reference(tmp_path / "bin")
    for folder in (tmp_path / "shards", as_bin(tmp_path / "bin")):
        loaded = load_model(folder, device="cpu").model.state_dict()
        assert all(torch.equal(loaded[name], tensor) for name, tensor in wanted.items())


def test_a_bin_file_in_shards_is_read_too(tmp_path: Path) -> None:
    weights = reference(tmp_path).state_dict()
    wanted = load_model(tmp_path, device="cpu").model.state_dict()
    (tmp_path / "model.safetensors").unlink()
    placed = {name: f"pytorch_model-{number % 2}.bin" for number, name in enumerate(weights)}
    for file in set(placed.values()):
        torch.save({name: weights[name] for name in placed if placed[name] == file}, tmp_path / file)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": placed}))
    loaded = load_model(tmp_path, device="cpu").model.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in wanted.items())


@pytest.mark.parametrize("limit", [1, 30_000, 10**9])
def test_written_weights_are_read_by_transformers_bit_for_bit(tmp_path: Path, limit: int) -> None:
    theirs = reference(tmp_path / "theirs", embd_pdrop=0.25, resid_pdrop=0.25, attn_pdrop=0.25)
    ours = load_model(tmp_path / "theirs", device="cpu")
    folder = tmp_path / "ours"
    folder.mkdir()
    config = hf_config.config(ours.shape, dtype="float32", end=7)
    (folder / hf_config.CONFIG_FILE).write_text(json.dumps(config))
    hf.write_weights(folder, ours.shape, ours.model, dtype=torch.float32, limit=limit)
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) == {1: 28, 30_000: len(files), 10**9: 1}[limit]
    for file in files:
        held = load_file(file)
        assert len(held) == 1 or sum(tensor.nbytes for tensor in held.values()) <= limit
    again, notes = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(notes[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in theirs.state_dict().items())
    assert again.lm_head.weight is again.transformer.wte.weight
    assert (again.config.eos_token_id, again.config.bos_token_id) == (7, 7)
    for key in (*ODD, "resid_pdrop", "embd_pdrop", "attn_pdrop", "initializer_range", "layer_norm_epsilon", "n_inner"):
        assert getattr(again.config, key) == getattr(theirs.config, key), key


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, 'model_type is "mamba"'),
        ({"activation_function": "relu"}, 'activation_function is "relu"'),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon is 1e-06"),
        ({"scale_attn_weights": False}, "scale_attn_weights is false"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is false"),
        ({"add_cross_attention": True}, "add_cross_attention is true"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is"),
        ({"attn_pdrop": 0.5}, "the dropouts differ (resid_pdrop 0.1, embd_pdrop 0.1, attn_pdrop 0.5)"),
        ({"resid_pdrop": [1]}, "the dropouts differ (resid_pdrop [1]"),
        ({key: [1] for key in ("resid_pdrop", "embd_pdrop", "attn_pdrop")}, "dropout: "),
        ({"n_head": 7}, "width 60 is not a multiple of heads 7"),
        ({"n_layer": 0}, "n_layer: "),
        ({"n_embd": "wide"}, "n_embd: "),
        ({"n_embd": {}}, "n_embd: "),
        ({"vocab_size": None}, "vocab_size: "),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_an_unsupported_config_is_refused_by_name(tmp_path: Path, change: dict[str, object], message: str) -> None:
    reference(tmp_path)
    file = tmp_path / hf_config.CONFIG_FILE
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(UserError) as error:
        load_model(tmp_path, device="cpu")
    assert message in str(error.value)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


def drop(weights: dict[str, torch.Tensor]) -> None:
    del weights["transformer.h.1.ln_2.bias"]


def add(weights: dict[str, torch.Tensor]) -> None:
    weights["transformer.h.2.ln_1.bias"] = torch.zeros(60)


def cut(weights: dict[str, torch.Tensor]) -> None:
    weights["transformer.wte.weight"] = torch.zeros(100, 60)


def stack(weights: dict[str, torch.Tensor]) -> None:
    weights["transformer.h.0.mlp.c_fc.weight"] = torch.zeros(2, 60, 240)


def count(weights: dict[str, torch.Tensor]) -> None:
    weights["transformer.ln_f.bias"] = torch.zeros(60, dtype=torch.int8)


def untie(weights: dict[str, torch.Tensor]) -> None:
    weights["lm_head.weight"] = torch.zeros(101, 60)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (drop, "it is missing h.1.ln_2.bias"),
        (add, "has the unknown transformer.h.2.ln_1.bias"),
        (cut, "another shape of transformer.wte.weight float32 [100, 60]"),
        (stack, "transformer.h.0.mlp.c_fc.weight"),
        (count, "transformer.ln_f.bias int8 [60]"),
        (untie, "lm_head.weight differs from the embedding"),
    ],
)
def test_missing_unknown_and_misshapen_tensors_are_named(
    tmp_path: Path, harm: Callable[[dict[str, torch.Tensor]], None], message: str
) -> None:
    reference(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    harm(weights)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError) as error:
        load_model(tmp_path, device="cpu")
    assert message in str(error.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    reference(tmp_path, shard="50KB")
    index = tmp_path / "model.safetensors.index.json"
    shards = sorted(tmp_path.glob("*.safetensors"))
    shards[0].write_bytes(shards[0].read_bytes()[:500])
    with pytest.raises(UserError, match=f"{shards[0].name} cannot be read as tensors"):
        load_model(tmp_path, device="cpu")
    for held in ({"x": {"data_offsets": [1]}}, {"x": {"data_offsets": "x"}}):
        header = json.dumps(held).encode()
        shards[0].write_bytes(len(header).to_bytes(8, "little") + header)
        with pytest.raises(UserError, match=f"{shards[0].name} cannot be read as tensors"):
            load_model(tmp_path, device="cpu")
    shards[0].unlink()
    os.mkfifo(shards[0])
    with pytest.raises(UserError, match=f"{shards[0].name} is a pipe"):
        load_model(tmp_path, device="cpu")
    with pytest.raises(UserError, match=f"{shards[0].name} is a pipe"):
        hf_config.identity(tmp_path)
    shards[0].unlink()
    with pytest.raises(UserError, match=f"{shards[0].name} is missing"):
        load_model(tmp_path, device="cpu")
    index.write_text(json.dumps({"weight_map": {"x": "../elsewhere.safetensors"}}))
    with pytest.raises(UserError, match="is no file beside it"):
        load_model(tmp_path, device="cpu")
    index.write_text("{")
    with pytest.raises(UserError, match=r"index\.json cannot be read"):
        load_model(tmp_path, device="cpu")
    index.unlink()
    with pytest.raises(UserError, match="has no weights"):
        load_model(tmp_path, device="cpu")


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_a_bin_file_with_any_damaged_bytes_is_read_or_refused_in_one_line(tmp_path: Path, zipped: bool) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    file = tmp_path / "pytorch_model.bin"
    held = {"wte.weight": torch.randn(10, 4), "h.0.ln_1.weight": torch.randn(4)}
    torch.save(held, file, _use_new_zipfile_serialization=zipped)
    whole = file.read_bytes()
    for _ in range(250):
        harmed = bytearray(whole[: dice.randrange(1, len(whole))] if dice.random() < 0.3 else whole)
        for _ in range(dice.randrange(1, 6)):
            harmed[dice.randrange(len(harmed))] = dice.randrange(256)
        file.write_bytes(harmed)
        problem = ""
        try:
            list(hf.tensors(tmp_path))
        except UserError as e:
            problem = str(e)
        assert not problem or problem.startswith(f"{file} cannot be read as tensors")
        assert "\n" not in problem


class Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("sprung",)


def test_a_bin_file_cannot_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reference(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(UserError, match="cannot be read as tensors"):
        load_model(tmp_path, device="cpu")
    torch.save({"state_dict": {}}, tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="other things than named tensors"):
        load_model(tmp_path, device="cpu")
    assert not Path("sprung").exists()


def test_values_that_do_not_fit_are_refused_before_they_become_infinite(tmp_path: Path) -> None:
    shape = Model(layers=1, heads=1, width=8, context=4, vocab=5)
    model = new_model(shape)
    model.state_dict()["ln_f.weight"].fill_(1e6)
    with pytest.raises(UserError, match=r"ln_f\.weight has values that do not fit torch\.float16"):
        hf.write_weights(tmp_path, shape, model, dtype=torch.float16, limit=10**9)
    hf.write_weights(tmp_path, shape, model, dtype=torch.bfloat16, limit=10**9)
    model.state_dict()["ln_f.weight"].fill_(torch.nan)
    with pytest.raises(UserError, match=r"ln_f\.weight has values that are no numbers"):
        hf.write_weights(tmp_path, shape, model, dtype=torch.float32, limit=10**9)


def test_a_model_of_the_users_own_cannot_be_read_by_transformers() -> None:
    with pytest.raises(UserError, match="mine:build is your own code"):
        hf_config.config(Model(family="mine:build", vocab=5), dtype="float32", end=0)


def test_weights_that_cannot_be_written_are_reported_with_the_reason(tmp_path: Path) -> None:
    shape = Model(layers=2, heads=2, width=64, context=32, vocab=100)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))  # as on a full disk, a write fails
    try:
        with pytest.raises(UserError, match=r"model\.safetensors cannot be written: .*File too large.* Free some disk"):
            hf.write_weights(tmp_path, shape, new_model(shape), dtype=torch.float32, limit=10**9)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
