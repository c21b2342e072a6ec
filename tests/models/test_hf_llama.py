"""Llamas in the format of transformers, read and written, compared with transformers itself."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from stoker.models import hf
from stoker.models.load import load_model
from stoker.spec import hf_config
from stoker.spec.errors import UserError
from stoker.spec.model import Model, RopeScaling
from stoker.spec.presets import presets

ODD = {"num_hidden_layers": 2, "num_attention_heads": 6, "hidden_size": 60, "intermediate_size": 77, "vocab_size": 101}
ODD |= {"max_position_embeddings": 33, "num_key_value_heads": 3}
TURNS = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
TURNS |= {"original_max_position_embeddings": 16}
KINDS = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "each its own keys": {"num_key_value_heads": None},
    "slowed": {"rope_parameters": TURNS},
    "inner by the rule": {"intermediate_size": 256, "rms_norm_eps": 1e-4},
}


def reference(folder: Path, *, shard: str = "5GB", **config: object) -> LlamaForCausalLM:
    torch.manual_seed(5)
    model = LlamaForCausalLM(LlamaConfig(**{**ODD, "initializer_range": 0.3, **config})).eval()
    model.save_pretrained(folder, max_shard_size=shard)
    return model


def rewrite(folder: Path, **change: object) -> Path:
    file = folder / hf_config.CONFIG_FILE
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    return file


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [20_000, 10**9])
def test_reading_and_writing_gives_the_same_bits_and_the_same_logits(tmp_path: Path, kind: str, limit: int) -> None:
    theirs = reference(tmp_path / "theirs", shard="40KB" if limit < 10**6 else "5GB", **KINDS[kind])
    ours = load_model(tmp_path / "theirs", device="cpu")
    tokens = torch.randint(101, (3, 33), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        assert torch.allclose(ours.model(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-4)
    folder = tmp_path / "ours"
    folder.mkdir()
    config = hf_config.config(ours.shape, dtype="float32", end=7, begin=5)
    (folder / hf_config.CONFIG_FILE).write_text(json.dumps(config))
    hf.write_weights(folder, ours.shape, ours.model, dtype=torch.float32, limit=limit)
    assert (len(list(folder.glob("*.safetensors"))) > 1) == (limit < 10**6)
    again, notes = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(notes[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in theirs.state_dict().items())
    assert (again.lm_head.weight is again.model.embed_tokens.weight) == ours.shape.tied
    assert (again.config.bos_token_id, again.config.eos_token_id) == (5, 7)
    keys = (*ODD, "head_dim", "initializer_range", "rms_norm_eps", "tie_word_embeddings", "rope_parameters")
    for key in keys:
        assert getattr(again.config, key) == getattr(theirs.config, key), key
    assert load_model(folder, device="cpu").shape == ours.shape


def test_a_tied_model_may_hold_its_head_twice_and_old_files_their_frequencies(tmp_path: Path) -> None:
    theirs = reference(tmp_path, tie_word_embeddings=True)
    held = dict(theirs.state_dict())
    held["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(5)
    (tmp_path / "model.safetensors").unlink()
    torch.save(held, tmp_path / "pytorch_model.bin")
    assert torch.equal(load_model(tmp_path, device="cpu").model.head, theirs.lm_head.weight)
    held["lm_head.weight"] = torch.zeros(101, 60)
    torch.save(held, tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"lm_head\.weight differs from the embedding"):
        load_model(tmp_path, device="cpu")


def test_both_ways_of_writing_the_rotary_settings_are_read(tmp_path: Path) -> None:
    reference(tmp_path, rope_parameters=TURNS)
    new = hf_config.read_shape(tmp_path)
    wanted = RopeScaling(factor=8, low=1, high=4, original_context=16)
    assert (new.rope_theta, new.rope_scaling) == (500, wanted)
    old = {key: value for key, value in TURNS.items() if key != "rope_theta"}
    rewrite(tmp_path, rope_parameters=None, rope_theta=500.0, rope_scaling=old)
    assert hf_config.read_shape(tmp_path) == new
    rewrite(tmp_path, rope_scaling=None)
    assert (hf_config.read_shape(tmp_path).rope_theta, hf_config.read_shape(tmp_path).rope_scaling) == (500, None)


@pytest.mark.parametrize("name", [name for name in presets("model") if name.startswith("llama")])
def test_every_preset_is_the_model_that_its_config_describes(tmp_path: Path, name: str) -> None:
    shape = Model.model_validate({"vocab": 1000, **presets("model")[name].document.values})
    (tmp_path / hf_config.CONFIG_FILE).write_text(json.dumps(hf_config.config(shape, dtype="bfloat16", end=2, begin=1)))
    theirs = LlamaConfig.from_pretrained(tmp_path)
    with torch.device("meta"):
        number = sum(p.numel() for p in LlamaForCausalLM(theirs).parameters())
    published = {"llama2-7b": 6.74, "llama2-13b": 13.0, "llama2-70b": 69.0, "llama3.1-8b": 8.03, "llama3.1-70b": 70.6}
    published |= {"llama3.2-1b": 1.24, "llama3.2-3b": 3.21}
    assert number / 1e9 == pytest.approx(published.get(name, number / 1e9), abs=0.05)
    read = hf_config.read_shape(tmp_path)
    assert read.inner == shape.inner
    assert read.key_heads == shape.key_heads
    assert read.rope_scaling == shape.rope_scaling


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "gelu"}, 'hidden_act is "gelu"'),
        ({"attention_bias": True}, "attention_bias is true"),
        ({"mlp_bias": True}, "mlp_bias is true"),
        ({"attention_dropout": 0.1}, "attention_dropout is 0.1"),
        ({"head_dim": 32}, "head_dim is 32"),
        ({"num_attention_heads": 7}, "width 60 is not a multiple of heads 7"),
        ({"num_attention_heads": 0}, "num_attention_heads: "),
        ({"num_key_value_heads": 4}, "kv_heads 4 does not divide heads 6"),
        ({"rope_parameters": TURNS | {"rope_type": "yarn"}}, 'rope_type is "yarn"'),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2}}, 'rope_type is "linear"'),
        ({"rope_parameters": TURNS | {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
        ({"rope_parameters": None, "rope_scaling": "x"}, 'rope_scaling is "x", not an object'),
        ({"rope_parameters": ["llama3"]}, 'rope_parameters is ["llama3"], not an object'),
        ({"rope_parameters": TURNS | {"factor": None}}, "rope_scaling: "),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_an_unsupported_llama_config_is_refused_by_name(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    reference(tmp_path)
    file = rewrite(tmp_path, **change)
    with pytest.raises(UserError) as error:
        load_model(tmp_path, device="cpu")
    assert message in str(error.value)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_damaged_file_is_named_with_the_tensor_that_is_incomplete(tmp_path: Path) -> None:
    reference(tmp_path, shard="40KB")
    file = sorted(tmp_path.glob("*.safetensors"))[1]
    whole = file.read_bytes()
    header = int.from_bytes(whole[:8], "little")
    listed = json.loads(whole[8 : 8 + header])
    name = min((n for n in listed if n != "__metadata__"), key=lambda n: listed[n]["data_offsets"][1])
    file.write_bytes(whole[: 8 + header + 10])
    with pytest.raises(UserError, match=f"{file.name} cannot be read as tensors: it ends inside {name}") as error:
        load_model(tmp_path, device="cpu")
    assert "\n" not in str(error.value)
    listed[name]["shape"][0] += 1
    changed = json.dumps(listed, separators=(",", ":")).encode().ljust(header)
    file.write_bytes(len(changed).to_bytes(8, "little") + changed + whole[8 + header :])
    with pytest.raises(UserError, match=f"{name} has .* bytes, which are no F32"):
        load_model(tmp_path, device="cpu")
    for harmed in (b"", whole[:5], whole[:40], b"\xff" * 100, whole[:8] + b"{" * header + whole[8 + header :]):
        file.write_bytes(harmed)
        with pytest.raises(UserError, match=f"{file.name} cannot be read as tensors"):
            load_model(tmp_path, device="cpu")


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    reference(tmp_path)
    held = load_file(tmp_path / "model.safetensors")
    held["model.layers.1.self_attn.k_proj.weight"] = torch.zeros(60, 60)
    save_file(held, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"another shape of model\.layers\.1\.self_attn\.k_proj\.weight"):
        load_model(tmp_path, device="cpu")
