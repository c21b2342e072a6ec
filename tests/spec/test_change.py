import pytest

from stoker.spec.change import difference
from stoker.spec.load import load

BASE = ["base=demo", "data=/books"]


@pytest.mark.parametrize(
    "word",
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
def test_what_does_not_change_the_mathematics_may_change(word: str) -> None:
    key = word.partition("=")[0]
    found = difference(load(None, BASE).spec, load(None, [*BASE, word]).spec)
    assert list(found.allowed) == [key]
    assert not found.refused


@pytest.mark.parametrize(
    "word",
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
def test_anything_else_is_refused_with_both_values(word: str) -> None:
    key = word.partition("=")[0]
    old, new = load(None, BASE).spec, load(None, [*BASE, word]).spec
    found = difference(old, new)
    assert list(found.refused) == [key]
    assert found.refused[key] != found.refused[key][::-1]
    assert not found.allowed


def test_a_name_and_a_vocabulary_left_to_the_tokenizer_are_no_difference() -> None:
    old = load(None, [*BASE, "model.vocab=4096", "name=a"]).spec
    found = difference(old, load(None, BASE).spec)
    assert not found.allowed
    assert not found.refused
    assert "model.vocab" in difference(old, load(None, [*BASE, "model.vocab=5000"]).spec).refused


def test_where_the_data_lies_is_left_to_its_content_key() -> None:
    found = difference(load(None, BASE).spec, load(None, [*BASE, "data=/elsewhere", "data.tokenizer=gpt2"]).spec)
    assert set(found.data) == {"data.path", "data.tokenizer"}
    assert not found.refused


def test_what_a_variable_of_the_environment_holds_is_never_shown() -> None:
    old, new = load(None, [*BASE, "env.KEY=hunter2"]).spec, load(None, [*BASE, "env.KEY=swordfish"]).spec
    assert difference(old, new).refused == {"env.KEY": ("…", "…")}
    assert difference(old, load(None, BASE).spec).refused == {"env.KEY": ("…", None)}
