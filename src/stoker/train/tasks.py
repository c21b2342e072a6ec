"""Tasks with a right answer: choose between continuations, or say the last word of a passage.

choice     JSONL: {"context": …, "choices": […], "answer": 2}; also ctx, question, prompt; endings, options; label, gold
last-word  JSONL {"text": …}, or plain text, one passage a line: its last word is to be predicted from all before it
"""

import json
import math
import string
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from stoker.spec.bounded import parse_json
from stoker.spec.errors import UserError
from stoker.spec.model import Model
from stoker.spec.regular import read_text
from stoker.train.choices import DTYPES, Precision

CONTEXTS = ("context", "ctx", "question", "prompt")
CHOICES = ("choices", "endings", "options")
ANSWERS = ("answer", "label", "gold")
AT_ONCE = 1 << 12  # tokens in a batch
LONGEST_NUMBER = 9  # characters of the number of a choice
LARGEST_FILE = 256 << 20  # bytes of questions
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    context: str
    choices: Sequence[str]
    """Each with the space that parts it from the context."""
    answer: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    questions: int
    accuracy: float
    """Share whose right continuation is the likeliest; of last words, those that greedy decoding writes."""
    accuracy_by_length: float | None
    """The same with each likelihood divided by the bytes of its text; of choices."""
    perplexity: float | None
    """Of last words."""
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What a model says of a continuation."""

    log_likelihood: float
    greedy: bool
    """Every token of it is the likeliest."""


def read_choices(file: Path) -> list[Question]:
    return [_question(file, number, record) for number, record in _records(file)]


def read_last_words(file: Path) -> list[Question]:
    questions = []
    for number, text in _passages(file):
        context, space, word = text.rstrip().rpartition(" ")
        if not context.strip():
            raise UserError(f"{file}:{number} has no last word after others", remedy="Give whole passages, one a line")
        questions.append(Question(context=context, choices=[space + word], answer=0))
    return questions


def choose(
    model: nn.Module, shape: Model, tokenizer: Tokenizer, end: int, questions: Sequence[Question], *,
    precision: Precision = "fp32", progress: Progress = lambda _done, _total: None,
) -> Outcome:  # fmt: skip
    began = time.monotonic()
    told = _tell(model, shape, tokenizer, end, questions, precision=precision, progress=progress)
    right = by_length = 0
    for question, said in zip(questions, told, strict=True):
        plain = [one.log_likelihood for one in said]
        shared = [
            one.log_likelihood / max(1, len(text.encode())) for one, text in zip(said, question.choices, strict=True)
        ]
        right += plain.index(max(plain)) == question.answer
        by_length += shared.index(max(shared)) == question.answer
    number = len(questions)
    return Outcome(
        questions=number,
        accuracy=right / number,
        accuracy_by_length=by_length / number,
        perplexity=None,
        seconds=time.monotonic() - began,
    )


def last_words(
    model: nn.Module, shape: Model, tokenizer: Tokenizer, end: int, questions: Sequence[Question], *,
    precision: Precision = "fp32", progress: Progress = lambda _done, _total: None,
) -> Outcome:  # fmt: skip
    began = time.monotonic()
    told = [said[0] for said in _tell(model, shape, tokenizer, end, questions, precision=precision, progress=progress)]
    number = len(told)
    return Outcome(
        questions=number,
        accuracy=sum(one.greedy for one in told) / number,
        accuracy_by_length=None,
        perplexity=math.exp(-sum(one.log_likelihood for one in told) / number),
        seconds=time.monotonic() - began,
    )


def _tell(
    model: nn.Module, shape: Model, tokenizer: Tokenizer, end: int, questions: Sequence[Question], *,
    precision: Precision, progress: Progress,
) -> list[list[Told]]:  # fmt: skip
    """What the model says of every continuation, long ones together: right of a row's end nothing changes it."""
    rows = [
        (number, place, *_ids(tokenizer, end, shape, question.context, choice))
        for number, question in enumerate(questions)
        for place, choice in enumerate(question.choices)
    ]
    rows.sort(key=lambda row: len(row[2]))
    found: dict[tuple[int, int], Told] = {}
    start = 0
    while start < len(rows):
        stop = start + 1
        while stop < len(rows) and (stop + 1 - start) * len(rows[stop][2]) <= AT_ONCE:
            stop += 1
        said = _read(model, [row[2] for row in rows[start:stop]], [row[3] for row in rows[start:stop]], precision)
        found |= {row[:2]: one for row, one in zip(rows[start:stop], said, strict=True)}
        progress(stop, len(rows))
        start = stop
    return [
        [found[number, place] for place in range(len(question.choices))] for number, question in enumerate(questions)
    ]


def _ids(tokenizer: Tokenizer, end: int, shape: Model, context: str, choice: str) -> tuple[list[int], int]:
    """Tokens of both, and how many are the continuation's. They are spelled together, as they would be in a text."""
    before = tokenizer.encode(context, add_special_tokens=False).ids
    whole = tokenizer.encode(context + choice, add_special_tokens=False).ids
    new = max(1, len(whole) - len(before))
    if max(whole, default=0) >= (shape.vocab or 0):
        raise UserError(
            f"the tokenizer gives token {max(whole)}, and the model knows {shape.vocab} tokens",
            remedy="Name the tokenizer that it was trained with: --tokenizer DIR",
        )
    ids = [end, *whole][-shape.context - 1 :]
    return ids, min(new, len(ids) - 1)


@torch.inference_mode()
def _read(model: nn.Module, rows: list[list[int]], news: list[int], precision: Precision) -> list[Told]:
    device = next(model.parameters()).device
    longest = max(map(len, rows))
    tokens_BT = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=device)
    with torch.autocast(device.type, dtype=DTYPES[precision], enabled=precision != "fp32"):
        logits_BTV: Tensor = model(tokens_BT[:, :-1])
    told = []
    for row_T, logits_TV, ids, new in zip(tokens_BT, logits_BTV, rows, news, strict=True):
        goals_N = row_T[len(ids) - new : len(ids)]
        logs_NV = logits_TV[len(ids) - new - 1 : len(ids) - 1].double().log_softmax(1)
        likelihood = float(logs_NV.gather(1, goals_N[:, None]).sum())
        told.append(Told(log_likelihood=likelihood, greedy=bool((logs_NV.argmax(1) == goals_N).all())))
    return told


def _records(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in _lines(file):
        try:
            record = parse_json(line)
        except ValueError as e:
            raise UserError(f"{file}:{number} is not JSON", remedy="Give JSONL, one question a line") from e
        if not isinstance(record, dict):
            raise UserError(f"{file}:{number} is no JSON object", remedy="Give JSONL, one question a line")
        yield number, record


def _passages(file: Path) -> Iterator[tuple[int, str]]:
    if file.suffix not in (".jsonl", ".json"):
        yield from _lines(file)
        return
    for number, record in _records(file):
        text = record.get("text")
        if not isinstance(text, str):
            raise UserError(f"{file}:{number} has no text", remedy='Write {"text": "…"} on each line')
        yield number, text


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    try:
        lines = read_text(file, most=LARGEST_FILE).split(
            "\n"
        )  # splitlines() would cut inside JSON texts, at U+2028 too
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is not UTF-8 text"
        raise UserError(f"{file} cannot be read: {reason}", remedy="Name a file of questions") from e
    found = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise UserError(f"{file} is empty", remedy="Name a file of questions")
    yield from found


def _question(file: Path, number: int, record: Mapping[str, Any]) -> Question:
    context, choices, answer = (_first(record, names) for names in (CONTEXTS, CHOICES, ANSWERS))
    if not isinstance(context, str) or not isinstance(choices, list) or not all(isinstance(c, str) for c in choices):
        raise UserError(
            f"{file}:{number} has no context and list of choices",
            remedy='Write {"context": "…", "choices": ["…", "…"], "answer": 0} on each line',
        )
    if not all(choice.strip() for choice in choices):
        raise UserError(f"{file}:{number} has an empty choice", remedy="Give text to choose, or take the question out")
    place = _place(answer)
    if place is None or not 0 <= place < len(choices):
        raise UserError(
            f"{file}:{number} has the answer {json.dumps(answer)}, and {len(choices)} choices",
            remedy="Give the number of the right choice, counted from 0, or its letter",
        )
    context = context.rstrip()
    parted = [choice if choice[:1] in string.whitespace else f" {choice}" for choice in choices]
    return Question(
        context=context, choices=parted if context else [choice.lstrip() for choice in choices], answer=place
    )


def _first(record: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((record[name] for name in names if name in record), None)


def _place(answer: object) -> int | None:
    if isinstance(answer, int) and not isinstance(answer, bool):
        return answer
    if isinstance(answer, str) and answer.strip().isdecimal() and len(answer) <= LONGEST_NUMBER:
        return int(answer)
    if isinstance(answer, str) and len(answer.strip()) == 1 and answer.strip().upper() in string.ascii_uppercase:
        return string.ascii_uppercase.index(answer.strip().upper())
    return None
