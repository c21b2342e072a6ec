import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from stoker.data.tokenizer import LoadedTokenizer, load_folder
from stoker.inference.tasks import Question, choose, last_words, read_choices, read_last_words
from stoker.models.build import new_model
from stoker.rundir import RunDir
from stoker.spec.errors import RunFailed, UserError
from stoker.spec.model import Model
from tests.inside import inside

STORY = "the stoker feeds the old engine. a boiler warms the grate"


@pytest.fixture
def tokenizer(tokens: Path) -> LoadedTokenizer:
    return load_folder(tokens / "tokenizer")


@pytest.fixture
def shape(tokenizer: LoadedTokenizer) -> Model:
    return Model(layers=2, heads=2, width=32, context=24, vocab=tokenizer.vocab, init_std=0.3)


@pytest.fixture
def model(shape: Model) -> nn.Module:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return new_model(shape, seed=seed).eval()


@torch.no_grad()
def by_hand(model: nn.Module, tokenizer: LoadedTokenizer, context: str, choice: str) -> float:
    """A single text, token by token."""
    before, ids = (tokenizer.tokenizer.encode(text).ids for text in (context, context + choice))
    whole = [tokenizer.end_id, *ids]
    likelihood = 0.0
    for position in range(1 + len(before), len(whole)):
        seen: Tensor = torch.tensor([whole[:position]])
        likelihood += float(model(seen)[0, -1].double().log_softmax(0)[whole[position]])
    return likelihood


def test_the_most_likely_continuation_is_chosen_in_any_batch(
    model: nn.Module, shape: Model, tokenizer: LoadedTokenizer
) -> None:
    draw = random.Random(3)
    endings = [" the grate.", " a boiler.", " the stoker and the old engine.", " coal"]
    questions = []
    for context in ("the stoker", "a heap of coal lights", "", "the old engine watches"):
        choices = [text if context else text.lstrip() for text in draw.sample(endings, 3)]
        likelihoods = [by_hand(model, tokenizer, context, choice) for choice in choices]
        questions.append(Question(context=context, choices=choices, answer=likelihoods.index(max(likelihoods))))
    outcome = choose(model, shape, tokenizer.tokenizer, tokenizer.end_id, questions)
    assert (outcome.questions, outcome.accuracy) == (4, 1.0)
    wrong = [replace(question, answer=(question.answer + 1) % 3) for question in questions]
    assert choose(model, shape, tokenizer.tokenizer, tokenizer.end_id, wrong).accuracy == 0


def test_the_perplexity_of_last_words_is_that_of_each_alone(
    model: nn.Module, shape: Model, tokenizer: LoadedTokenizer, tmp_path: Path
) -> None:
    texts = ["the stoker feeds a boiler", "a boiler warms the grate", "coal"]
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:2]))
    questions = read_last_words(file)
    assert [question.choices for question in questions] == [[" boiler"], [" grate"]]
    outcome = last_words(model, shape, tokenizer.tokenizer, tokenizer.end_id, questions)
    pairs = [("the stoker feeds a", " boiler"), ("a boiler warms the", " grate")]
    wanted = [by_hand(model, tokenizer, *pair) for pair in pairs]
    assert outcome.perplexity == pytest.approx(math.exp(-sum(wanted) / 2), rel=1e-5)
    file.write_text(json.dumps({"text": texts[2]}))
    with pytest.raises(UserError, match=r"texts.jsonl:1 has no last word"):
        read_last_words(file)


def test_a_text_longer_than_the_context_is_cut_at_its_beginning(
    model: nn.Module, shape: Model, tokenizer: LoadedTokenizer
) -> None:
    question = Question(context=STORY * 20, choices=[" coal", " engine"], answer=0)
    outcome = choose(model, shape, tokenizer.tokenizer, tokenizer.end_id, [question])
    assert outcome.questions == 1


@pytest.mark.parametrize(
    "record",
    [
        {"context": "a", "choices": ["b", "c"], "answer": 1},
        {"ctx": "a", "endings": ["b", "c"], "label": "1"},
        {"question": "a ", "options": [" b", " c"], "gold": "B"},
    ],
)
def test_the_usual_field_names_of_questions_are_accepted(tmp_path: Path, record: dict[str, object]) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text(json.dumps(record) + "\n\n")
    assert read_choices(file) == [Question(context="a", choices=[" b", " c"], answer=1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("{", ":1 is not JSON"),
        ("[1]", ":1 is not a JSON object"),
        ('{"context": "a"}', ":1 has no context and list of choices"),
        ('{"context": "a", "choices": ["b"], "answer": 1}', ":1 has the answer 1, and 1 choices"),
        ('{"context": "a", "choices": ["b"]}', ":1 has the answer null"),
    ],
)
def test_an_invalid_question_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text(text)
    with pytest.raises(UserError) as error:
        read_choices(file)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_trained_model_knows_the_grammar_of_its_text(worker: Callable[..., RunDir], tmp_path: Path) -> None:
    run = worker("name=run", "until.steps=60", "optim.lr=3e-3")
    file = tmp_path / "questions.jsonl"
    line = {"context": "the stoker feeds the old", "choices": ["engine.", "xqz jkw"], "answer": "A"}
    file.write_text(json.dumps(line) + "\n")
    command = ["eval", str(run.path), "--data", str(file), "--device", "cpu"]
    assert json.loads(inside(*command, "--task", "choice", "--json").stdout)["accuracy"] == 1
    passages = tmp_path / "passages.txt"
    passages.write_text("the stoker feeds the old engine.\n")
    shown = inside("eval", str(run.path), "--data", str(passages), "--task", "last-word").stdout
    assert "perplexity" in shown
    assert "1 questions (last-word)" in shown
    assert "needs one file" in inside("eval", str(run.path), "--task", "choice", code=2).stderr


@pytest.mark.parametrize("odd", ["\u2028", "\u2029", "\u0085"])
def test_a_line_separator_inside_a_text_does_not_end_the_line(tmp_path: Path, odd: str) -> None:
    record = {"context": f"a{odd}b", "choices": ["x", "y"], "answer": 1}
    file = tmp_path / "questions.jsonl"
    file.write_bytes(f"{json.dumps(record, ensure_ascii=False)}\r\n\r\n{json.dumps(record)}\n".encode())
    assert read_choices(file) == [Question(context=f"a{odd}b", choices=[" x", " y"], answer=1)] * 2
    plain = tmp_path / "passages.txt"
    plain.write_bytes(f"one{odd}two\fthree four\r\n".encode())
    assert read_last_words(plain) == [Question(context=f"one{odd}two\fthree", choices=[" four"], answer=0)]


def test_a_model_whose_weights_are_not_finite_is_not_scored(
    model: nn.Module, shape: Model, tokenizer: LoadedTokenizer
) -> None:
    with torch.no_grad():
        model.ln_f.weight[3] = torch.nan
    questions = [Question(context="the stoker", choices=[" feeds", " a boiler"], answer=0)]
    for score in (choose, last_words):
        with pytest.raises(RunFailed, match="its weights are not finite"):
            score(model, shape, tokenizer.tokenizer, tokenizer.end_id, questions)


def test_a_perplexity_too_large_for_a_float_is_left_out(
    model: nn.Module, shape: Model, tokenizer: LoadedTokenizer
) -> None:
    with torch.no_grad():
        model.ln_f.weight.mul_(1e4)
    questions = [Question(context="the stoker", choices=[" feeds a boiler and the old engine"], answer=0)]
    outcome = last_words(model, shape, tokenizer.tokenizer, tokenizer.end_id, questions)
    assert (outcome.perplexity, outcome.accuracy) == (None, 0)
