"""Our GPT-2 against the reference implementation."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from stoker.models.build import new_model
from stoker.models.gpt2 import SPEC
from stoker.spec.model import Model
from tests.models.reference import agrees

SHAPE = {"layers": 3, "heads": 4, "width": 64, "context": 48, "vocab": 199}


def pair(**switches: bool) -> tuple[torch.nn.Module, GPT2LMHeadModel]:
    torch.manual_seed(1)
    config = GPT2Config(
        n_layer=SHAPE["layers"],
        n_head=SHAPE["heads"],
        n_embd=SHAPE["width"],
        n_positions=SHAPE["context"],
        vocab_size=SHAPE["vocab"],
        initializer_range=0.2,
        reorder_and_upcast_attn=switches.get("upcast_attention", False),
        scale_attn_by_inverse_layer_idx=switches.get("scale_attention_by_layer", False),
        attn_implementation="eager",
    )
    reference = GPT2LMHeadModel(config).eval()
    ours = new_model(Model(**SHAPE, **switches)).eval()
    ours.load_state_dict(SPEC.from_hf(reference.state_dict()))
    return ours, reference


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"upcast_attention": True},
        {"scale_attention_by_layer": True},
        {"upcast_attention": True, "scale_attention_by_layer": True},
    ],
    ids=["plain", "upcast", "scaled", "both"],
)
def test_with_the_references_weights_it_gives_the_references_logits_and_gradients(switches: dict[str, bool]) -> None:
    ours, reference = pair(**switches)
    tokens = torch.randint(SHAPE["vocab"], (3, SHAPE["context"]), generator=torch.Generator().manual_seed(2))
    agrees(ours, reference, tokens, SPEC.from_hf)


def test_weights_are_converted_to_the_reference_and_back_unchanged() -> None:
    ours, reference = pair()
    exported = SPEC.to_hf(ours.state_dict())
    missing, unexpected = reference.load_state_dict(exported, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    imported = SPEC.from_hf(exported)
    assert all(torch.equal(imported[name], tensor) for name, tensor in ours.state_dict().items())


def test_initial_weights_have_the_references_spread() -> None:
    ours = new_model(Model(layers=4, heads=4, width=128, context=64, vocab=1000)).state_dict()
    assert ours["wte.weight"].std().item() == pytest.approx(0.02, rel=0.03)
    assert ours["h.0.attn.c_proj.weight"].std().item() == pytest.approx(0.02 / 8**0.5, rel=0.03)
    assert ours["h.0.ln_1.weight"].eq(1).all()
    assert ours["h.0.attn.c_attn.bias"].eq(0).all()


def test_attention_extremes_are_those_of_the_references_scores() -> None:
    ours, reference = pair()
    tokens = torch.randint(SHAPE["vocab"], (2, 20), generator=torch.Generator().manual_seed(3))
    hidden = reference(tokens, output_hidden_states=True).hidden_states
    future = torch.ones(20, 20, dtype=torch.bool).triu(1)
    for layer, (largest, smallest) in enumerate(SPEC.attention_extremes(ours, tokens)):
        block = reference.transformer.h[layer]
        q, k, _ = block.attn.c_attn(block.ln_1(hidden[layer])).split(SHAPE["width"], dim=2)
        q, k = (t.view(2, 20, SHAPE["heads"], -1).transpose(1, 2) for t in (q, k))
        scores = q @ k.transpose(2, 3) / (SHAPE["width"] / SHAPE["heads"]) ** 0.5
        assert largest == pytest.approx(scores.masked_fill(future, -1e9).max().item(), rel=1e-4)
        assert smallest == pytest.approx(scores.masked_fill(future, 1e9).min().item(), rel=1e-4)
