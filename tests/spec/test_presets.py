import pytest

from stoker.spec.errors import UserError
from stoker.spec.load import load
from stoker.spec.presets import preset, presets, presets_of_both_kinds
from stoker.spec.run import Model


def test_every_preset_loads_and_says_what_it_is() -> None:
    for one in presets_of_both_kinds():
        assert one.description
        if one.kind == "model":
            Model.model_validate(one.document.values)
            assert {"family", "layers", "heads", "width", "context"} == set(one.document.values)
        else:
            load(None, [f"base={one.name}", "data=.", *(["objective.teacher=."] if "distil" in one.name else [])])
    assert set(presets("model")) > {f"gpt2-{size}" for size in ("micro", "small", "medium", "large", "xl")}
    assert set(presets("run")) >= {"demo", "gpt2-small", "mistral-gpt2-small"}


def test_mistrals_recipe_is_the_published_one() -> None:
    spec = load(None, ["base=mistral-gpt2-small", "data=."]).spec
    assert (spec.model.layers, spec.model.upcast_attention, spec.model.scale_attention_by_layer) == (12, True, True)
    assert (spec.optim.lr, spec.optim.warmup, spec.optim.warmup_shape, spec.optim.schedule) == (
        6e-4,
        4000,
        "log",
        "linear",
    )
    assert (spec.until.steps, spec.precision, spec.checkpoint.first) == (400_000, "fp16", True)
    assert spec.checkpoint.every == [(2, 10), (10, 100), (50, 2000), (100, 20_000), (1000, 400_000)]


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(UserError, match="Did you mean gpt2-large"):
        preset("model", "gpt2-lage", where="command line")
