import pytest

from stoker.spec.errors import UserError
from stoker.spec.load import load
from stoker.spec.model import Model
from stoker.spec.presets import preset, presets, presets_of_both_kinds


def test_every_preset_loads_and_has_a_description() -> None:
    for listed in presets_of_both_kinds():
        assert listed.description
        if listed.kind == "model":
            Model.model_validate(listed.document.values)
            assert {"family", "layers", "heads", "width", "context"} <= set(listed.document.values)
        else:
            load(None, [f"base={listed.name}", "data=.", *(["objective.teacher=."] if "distil" in listed.name else [])])
    assert set(presets("model")) > {f"gpt2-{size}" for size in ("micro", "small", "medium", "large", "xl")}
    assert set(presets("model")) > {f"llama{size}" for size in ("2-7b", "2-13b", "2-70b", "3.1-8b", "3.1-70b", "-tiny")}
    assert set(presets("run")) >= {"demo", "gpt2-small", "mistral-gpt2-small", "llama2-7b"}


def test_llamas_recipe_is_the_published_one() -> None:
    spec = load(None, ["base=llama2-7b", "data=."]).spec
    assert (spec.model.layers, spec.model.inner, spec.model.vocab) == (32, 11008, 32000)
    optim = spec.optim
    assert (optim.lr, optim.schedule, optim.warmup, optim.floor) == (1e-4, "cosine", 0.0032, 0.1)
    assert (optim.betas, optim.weight_decay, optim.clip, spec.precision) == ((0.9, 0.95), 0.2, 1.0, "bf16")


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


@pytest.mark.parametrize(
    ("name", "sequences", "length", "predictions", "steps", "lr", "warmup", "kind"),
    [
        ("bert-large-phase1", 16_384, 128, 20, 28_125, 4e-4, 2000, "adamw"),
        ("bert-large-phase2", 32_768, 512, 80, 1_563, 2.8e-4, 781, "adamw"),
        ("bert-large-lamb", 65_536, 128, 20, 7_032, 6e-3, 2000, "lamb"),
    ],
)
def test_berts_recipes_are_the_published_ones(
    name: str, sequences: int, length: int, predictions: int, steps: int, lr: float, warmup: int, kind: str
) -> None:
    spec = load(None, [f"base={name}", "data=."]).spec
    assert (spec.model.family, spec.model.layers, spec.model.width, spec.model.dropout) == ("bert", 24, 1024, 0.1)
    assert (spec.batch.sequences, spec.batch.length, spec.objective.predictions) == (sequences, length, predictions)
    assert (spec.until.steps, spec.optim.lr, spec.optim.warmup, spec.optim.kind) == (steps, lr, warmup, kind)
    assert (spec.optim.schedule, spec.optim.weight_decay, spec.optim.clip) == ("linear", 0.01, 1.0)
    assert (spec.optim.betas, spec.optim.eps) == ((0.9, 0.999), 1e-6)


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(UserError, match="Did you mean gpt2-large"):
        preset("model", "gpt2-lage", where="command line")
