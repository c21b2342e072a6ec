"""Our Llama against the reference implementation."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from stoker.models import weights
from stoker.models.build import new_model
from stoker.models.llama import SPEC, Llama
from stoker.models.load import _empty
from stoker.spec.estimate import parameters
from stoker.spec.model import Model
from stoker.spec.presets import presets
from tests.models.reference import agrees

SIZES = {"layers": 3, "heads": 4, "width": 64, "hidden": 100, "context": 96, "vocab": 199, "rope_theta": 500.0}
SCALING = {"factor": 8.0, "low": 1.0, "high": 4.0, "original_context": 32}
KINDS = {
    "plain": {},
    "shared heads": {"kv_heads": 2},
    "one for all": {"kv_heads": 1, "norm_eps": 1e-3},
    "tied": {"tied": True},
    "slowed": {"rope_scaling": SCALING, "kv_heads": 2},
}
kinds = pytest.mark.parametrize("kind", KINDS)


def shape(kind: str) -> Model:
    return Model(family="llama", **SIZES, **KINDS[kind])


def pair(kind: str) -> tuple[torch.nn.Module, LlamaForCausalLM]:
    torch.manual_seed(1)
    ours = shape(kind)
    rope = {"rope_type": "default", "rope_theta": ours.rope_theta}
    if ours.rope_scaling:
        rope |= {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        rope["original_max_position_embeddings"] = 32
    config = LlamaConfig(
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=ours.key_heads,
        hidden_size=64,
        intermediate_size=100,
        max_position_embeddings=96,
        vocab_size=199,
        rms_norm_eps=ours.norm_eps,
        tie_word_embeddings=ours.tied,
        rope_parameters=rope,
        initializer_range=0.2,
    )
    reference = LlamaForCausalLM(config)
    model = SPEC.build(ours)
    model.load_state_dict(SPEC.from_hf(_untied(reference)))
    return model, reference


def _untied(reference: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    held = dict(reference.state_dict())
    if reference.config.tie_word_embeddings:
        del held["lm_head.weight"]
    return held


def some_tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(SIZES["vocab"], (rows, length), generator=torch.Generator().manual_seed(2))


@kinds
def test_with_the_references_weights_it_gives_the_references_logits_and_gradients(kind: str) -> None:
    ours, reference = pair(kind)
    tokens = some_tokens(3, SIZES["context"])
    agrees(ours, reference, tokens, SPEC.from_hf)


@kinds
def test_weights_are_converted_to_the_reference_and_back_unchanged(kind: str) -> None:
    ours, reference = pair(kind)
    exported = SPEC.to_hf(weights(ours))
    missing, unexpected = reference.load_state_dict(exported, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"] if shape(kind).tied else [], [])
    imported = SPEC.from_hf(exported)
    assert all(torch.equal(imported[name], tensor) for name, tensor in weights(ours).items())


def test_the_published_frequencies_are_scaled_as_in_the_reference() -> None:
    """Compared where they are used: at the far end of the long context, where an error would be largest."""
    rope = {"rope_type": "llama3", "rope_theta": 500_000.0, "factor": 32.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    config = LlamaConfig(
        num_hidden_layers=1, num_attention_heads=1, hidden_size=64, intermediate_size=8, vocab_size=8,
        max_position_embeddings=131_072, rope_parameters=rope,
    )  # fmt: skip
    preset = presets("model")["llama3.2-1b"].document.values
    small = {"layers": 1, "heads": 1, "kv_heads": 1, "width": 64, "hidden": 8, "vocab": 8}
    ours = SPEC.build(Model.model_validate(preset | small))
    positions = torch.tensor([[0, 1, 8191, 100_000, 131_071]])
    cos, sin = LlamaForCausalLM(config).model.rotary_emb(torch.zeros(1), positions)
    assert isinstance(ours, Llama)
    table = ours.rotary.table_L2D[positions[0]]
    assert torch.allclose(table[:, 0], cos[0, :, :32], atol=1e-6)
    assert torch.allclose(table[:, 1], sin[0, :, :32], atol=1e-6)


def test_a_model_built_without_memory_has_its_rotary_table_and_does_not_save_it() -> None:
    model, _ = pair("slowed")
    empty = _empty(shape("slowed"), torch.device("cpu"))
    assert weights(empty).keys() == dict(empty.named_parameters()).keys()
    empty.load_state_dict(model.state_dict())
    tokens = some_tokens(1, 40)
    assert torch.equal(empty(tokens), model(tokens))
    assert torch.equal(empty.bfloat16().float().rotary(9), model.rotary(9)), "they are not rounded with the weights"


def test_initial_weights_have_the_references_spread() -> None:
    sizes = {"layers": 2, "heads": 4, "width": 128, "context": 64, "vocab": 1000}
    ours = new_model(Model(family="llama", **sizes)).state_dict()
    for name in ("embed_tokens.weight", "lm_head.weight", "layers.1.mlp.down_proj.weight"):
        assert ours[name].std().item() == pytest.approx(0.02, rel=0.03)
    assert ours["layers.0.input_layernorm.weight"].eq(1).all()


def test_attention_extremes_are_those_of_the_references_scores() -> None:
    ours, reference = pair("shared heads")
    tokens = some_tokens(2, 20)
    hidden = reference(tokens, output_hidden_states=True).hidden_states
    cos, sin = reference.model.rotary_emb(hidden[0], torch.arange(20)[None])
    future = torch.ones(20, 20, dtype=torch.bool).triu(1)
    for layer, (largest, smallest) in enumerate(SPEC.attention_extremes(ours, tokens)):
        block = reference.model.layers[layer]
        x = block.input_layernorm(hidden[layer])
        q, k = (
            project(x).view(2, 20, -1, 16).transpose(1, 2)
            for project in (block.self_attn.q_proj, block.self_attn.k_proj)
        )
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        scores = q @ k.repeat_interleave(2, dim=1).transpose(2, 3) / 16**0.5
        assert largest == pytest.approx(scores.masked_fill(future, -1e9).max().item(), rel=1e-4)
        assert smallest == pytest.approx(scores.masked_fill(future, 1e9).min().item(), rel=1e-4)


def test_it_compiles_as_one_graph_and_computes_its_norms_in_fp32() -> None:
    model, _ = pair("shared heads")
    tokens = some_tokens(2, 40)
    explained = torch._dynamo.explain(model)(tokens)
    assert (explained.graph_break_count, explained.graph_count) == (0, 1)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model(tokens)
        assert model.norm(torch.ones(1, 64, dtype=torch.bfloat16)).dtype == torch.float32
    assert rounded.dtype == torch.bfloat16
    exact = model(tokens)
    assert (rounded.float() - exact).abs().max() < 0.05 * exact.abs().max()


@pytest.mark.parametrize("name", [name for name in presets("model") if name.startswith("llama")])
def test_the_parameter_count_of_a_shape_is_that_of_the_model(name: str) -> None:
    model = Model.model_validate({"vocab": 1000, **presets("model")[name].document.values})
    with torch.device("meta"):
        built = SPEC.build(model)
    assert parameters(model, model.vocab or 0) == sum(p.numel() for p in built.parameters())
