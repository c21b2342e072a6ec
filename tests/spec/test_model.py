import pytest

from stoker.spec.errors import UserError
from stoker.spec.load import load
from stoker.spec.model import Model

LLAMA = ["model.family=llama", "model.heads=8", "model.width=64", "data=x", "until.steps=1"]


def test_the_feed_forward_follows_llamas_rule_by_default() -> None:
    assert [Model(family="llama", heads=32, width=width).inner for width in (4096, 5120, 128)] == [11008, 13824, 512]
    assert Model(family="llama", hidden=100).inner == 100
    assert Model(heads=8, width=128).inner == 512


def test_rope_scaling_is_a_small_section_of_its_own() -> None:
    spec = load(None, [*LLAMA, "model.rope_scaling.factor=32"]).spec
    scaling = spec.model.rope_scaling
    assert (scaling.factor, scaling.low, scaling.high, scaling.original_context) == (32, 1, 4, 8192)
    assert load(None, [*LLAMA, "model.rope_scaling=null"]).spec.model.rope_scaling is None
    reloaded = load(spec, []).spec
    assert reloaded == spec


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.kv_heads=3"], "kv_heads 3 does not divide heads 8. Set kv_heads to 2"),
        (["model.kv_heads=16"], "kv_heads 16 does not divide heads 8. Set kv_heads to 8"),
        (
            ["model.width=40"],
            "an odd size of 5, and rotary positions need pairs. Set width to a multiple of 16",
        ),
        (["model.width=60"], "width 60 is not a multiple of heads 8. Set width to 64"),
        (["model.dropout=0.1"], "dropout has no effect on the family llama. Remove it: it is for gpt2 and bert"),
        (["model.upcast_attention=true"], "upcast_attention has no effect on the family llama"),
        (["model.family=gpt2", "model.kv_heads=2"], "kv_heads has no effect on the family gpt2"),
        (
            ["model.family=gpt2", "model.tied=true"],
            "tied has no effect on the family gpt2. Remove it",
        ),
        (["model.rope_scaling={factor: 0.5}"], "model.rope_scaling"),
        (["model.rope_scaling={facto: 2}"], "model.rope_scaling"),
        (["model.rope_scaling={factor: 2, low: 4}"], "low 4 is not below high 4"),
    ],
)
def test_settings_that_a_llama_does_not_support_are_refused_in_one_line_with_a_remedy(
    overrides: list[str], message: str
) -> None:
    with pytest.raises(UserError) as error:
        load(None, [*LLAMA, *overrides])
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.remedy
