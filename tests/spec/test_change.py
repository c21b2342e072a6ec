import pytest

from stoker.spec.change import difference
from stoker.spec.load import load

BASE = ["base=demo", "data=/books"]


@pytest.mark.parametrize(
    "override",
    [
        "on.workers=4",
        "until.steps=400",
        "until.epochs=2",
        "checkpoint.keep=9",
        "log.every=7",
        "eval.every=3",
        "batch.micro=2",
        "optim.horizon=900",
    ],
)
def test_settings_that_do_not_affect_the_results_may_change(override: str) -> None:
    key = override.partition("=")[0]
    changes = difference(load(None, BASE).spec, load(None, [*BASE, override]).spec)
    assert list(changes.allowed) == [key]
    assert not changes.refused


@pytest.mark.parametrize(
    "override",
    [
        "optim.lr=1",
        "batch.sequences=3",
        "batch.length=128",
        "model.layers=5",
        "seed=3",
        "precision=fp32",
        "env.A=1",
        "deterministic=true",
    ],
)
def test_other_settings_are_refused_with_both_values(override: str) -> None:
    key = override.partition("=")[0]
    old, new = load(None, BASE).spec, load(None, [*BASE, override]).spec
    changes = difference(old, new)
    assert list(changes.refused) == [key]
    assert changes.refused[key] != changes.refused[key][::-1]
    assert not changes.allowed


def test_a_name_and_a_vocabulary_left_to_the_tokenizer_are_no_difference() -> None:
    old = load(None, [*BASE, "model.vocab=4096", "name=a"]).spec
    changes = difference(old, load(None, BASE).spec)
    assert not changes.allowed
    assert not changes.refused
    assert "model.vocab" in difference(old, load(None, [*BASE, "model.vocab=5000"]).spec).refused


def test_a_changed_path_of_the_data_is_neither_allowed_nor_refused() -> None:
    changes = difference(load(None, BASE).spec, load(None, [*BASE, "data=/elsewhere", "data.tokenizer=gpt2"]).spec)
    assert set(changes.data) == {"data.path", "data.tokenizer"}
    assert not changes.refused


def test_the_value_of_an_environment_variable_is_never_shown() -> None:
    old, new = load(None, [*BASE, "env.KEY=hunter2"]).spec, load(None, [*BASE, "env.KEY=swordfish"]).spec
    assert difference(old, new).refused == {"env.KEY": ("…", "…")}
    assert difference(old, load(None, BASE).spec).refused == {"env.KEY": ("…", None)}
