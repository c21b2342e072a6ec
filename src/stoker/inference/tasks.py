"""Tasks with a right answer: choose between continuations, or predict the last word of a passage.

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

from stoker.inference.evaluate import perplexity
from stoker.spec.bounded import parse_json
from stoker.spec.errors import RunFailed, UserError
from stoker.spec.files import read_text
from stoker.spec.model import Model
from stoker.train.choices import DTYPES, Precision

CONTEXTS = ("context", "ctx", "question", "prompt")
CHOICES = ("choices", "endings", "options")
ANSWERS = ("answer", "label", "gold")
BATCH_TOKENS = 1 << 12
MAX_DIGITS = 9  # of the number of a choice
MAX_FILE_BYTES = 256 << 20
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    context: str
    choices: Sequence[str]
    """Each with the space that separates it from the context."""
    answer: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskOutcome:
    questions: int
    accuracy: float
    """Share whose right continuation is the most likely; for last words, the share that greedy decoding gives."""
    accuracy_by_length: float | None
    """The same with each likelihood divided by the bytes of its text; only of choices."""
    perplexity: float | None
    """Only of last words; None when it is too large for a float."""
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Likelihood:
    """Of a continuation."""

    log_likelihood: float
    greedy: bool
    """Whether every token of it is the most likely."""


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
) -> TaskOutcome:  # fmt: skip
    began = time.monotonic()
    likelihoods = _likelihoods(model, shape, tokenizer, end, questions, precision=precision, progress=progress)
    right = by_length = 0
    for question, choices in zip(questions, likelihoods, strict=True):
        plain = [choice.log_likelihood for choice in choices]
        per_byte = [
            choice.log_likelihood / max(1, len(text.encode()))
            for choice, text in zip(choices, question.choices, strict=True)
        ]
        right += plain.index(max(plain)) == question.answer
        by_length += per_byte.index(max(per_byte)) == question.answer
    number = len(questions)
    return TaskOutcome(
        questions=number,
        accuracy=right / number,
        accuracy_by_length=by_length / number,
        perplexity=None,
        seconds=time.monotonic() - began,
    )


def last_words(
    model: nn.Module, shape: Model, tokenizer: Tokenizer, end: int, questions: Sequence[Question], *,
    precision: Precision = "fp32", progress: Progress = lambda _done, _total: None,
) -> TaskOutcome:  # fmt: skip
    began = time.monotonic()
    likelihoods = _likelihoods(model, shape, tokenizer, end, questions, precision=precision, progress=progress)
    words = [choices[0] for choices in likelihoods]
    number = len(words)
    return TaskOutcome(
        questions=number,
        accuracy=sum(word.greedy for word in words) / number,
        accuracy_by_length=None,
        perplexity=perplexity(-sum(word.log_likelihood for word in words) / number),
        seconds=time.monotonic() - began,
    )


def _likelihoods(
    model: nn.Module, shape: Model, tokenizer: Tokenizer, end: int, questions: Sequence[Question], *,
    precision: Precision, progress: Progress,
) -> list[list[Likelihood]]:  # fmt: skip
    """Of every continuation. Rows of similar length share a batch; padding after a row has no effect."""
    rows = [
        (number, index, *_ids(tokenizer, end, shape, question.context, choice))
        for number, question in enumerate(questions)
        for index, choice in enumerate(question.choices)
    ]
    rows.sort(key=lambda row: len(row[2]))
    results: dict[tuple[int, int], Likelihood] = {}
    start = 0
    while start < len(rows):
        stop = start + 1
        while stop < len(rows) and (stop + 1 - start) * len(rows[stop][2]) <= BATCH_TOKENS:
            stop += 1
        batch = rows[start:stop]
        read = _read(model, [row[2] for row in batch], [row[3] for row in batch], precision)
        results |= {row[:2]: likelihood for row, likelihood in zip(batch, read, strict=True)}
        progress(stop, len(rows))
        start = stop
    return [
        [results[number, index] for index in range(len(question.choices))] for number, question in enumerate(questions)
    ]


def _ids(tokenizer: Tokenizer, end: int, shape: Model, context: str, choice: str) -> tuple[list[int], int]:
    """Tokens of both, encoded together as in a text, and how many belong to the continuation."""
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
def _read(model: nn.Module, rows: list[list[int]], lengths: list[int], precision: Precision) -> list[Likelihood]:
    device = next(model.parameters()).device
    longest = max(map(len, rows))
    tokens_BT = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=device)
    with torch.autocast(device.type, dtype=DTYPES[precision], enabled=precision != "fp32"):
        logits_BTV: Tensor = model(tokens_BT[:, :-1])
    likelihoods = []
    for row_T, logits_TV, ids, new in zip(tokens_BT, logits_BTV, rows, lengths, strict=True):
        goals_N = row_T[len(ids) - new : len(ids)]
        logs_NV = logits_TV[len(ids) - new - 1 : len(ids) - 1].double().log_softmax(1)
        likelihood = float(logs_NV.gather(1, goals_N[:, None]).sum())
        if math.isnan(likelihood):
            raise RunFailed(
                "the model gives no numbers: its weights are not finite",
                remedy="Use an earlier checkpoint with --step N",
            )
        likelihoods.append(Likelihood(log_likelihood=likelihood, greedy=bool((logs_NV.argmax(1) == goals_N).all())))
    return likelihoods


def _records(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in _lines(file):
        try:
            record = parse_json(line)
        except ValueError as e:
            raise UserError(f"{file}:{number} is not JSON", remedy="Give JSONL, one question a line") from e
        if not isinstance(record, dict):
            raise UserError(f"{file}:{number} is not a JSON object", remedy="Give JSONL, one question a line")
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
        # splitlines() would cut inside JSON texts, at U+2028 too
        lines = read_text(file, max_bytes=MAX_FILE_BYTES).split("\n")
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is not UTF-8 text"
        raise UserError(f"{file} cannot be read: {reason}", remedy="Name a file of questions") from e
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise UserError(f"{file} is empty", remedy="Name a file of questions")
    yield from numbered


def _question(file: Path, number: int, record: Mapping[str, Any]) -> Question:
    context, choices, answer = (_first(record, names) for names in (CONTEXTS, CHOICES, ANSWERS))
    if not isinstance(context, str) or not isinstance(choices, list) or not all(isinstance(c, str) for c in choices):
        raise UserError(
            f"{file}:{number} has no context and list of choices",
            remedy='Write {"context": "…", "choices": ["…", "…"], "answer": 0} on each line',
        )
    if not all(choice.strip() for choice in choices):
        raise UserError(f"{file}:{number} has an empty choice", remedy="Give text to choose, or remove the question")
    index = _index(answer)
    if index is None or not 0 <= index < len(choices):
        raise UserError(
            f"{file}:{number} has the answer {json.dumps(answer)}, and {len(choices)} choices",
            remedy="Give the number of the right choice, counted from 0, or its letter",
        )
    context = context.rstrip()
    parted = [choice if choice[:1] in string.whitespace else f" {choice}" for choice in choices]
    return Question(
        context=context, choices=parted if context else [choice.lstrip() for choice in choices], answer=index
    )


def _first(record: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((record[name] for name in names if name in record), None)


def _index(answer: object) -> int | None:
    if isinstance(answer, int) and not isinstance(answer, bool):
        return answer
    if isinstance(answer, str) and answer.strip().isdecimal() and len(answer) <= MAX_DIGITS:
        return int(answer)
    if isinstance(answer, str) and len(answer.strip()) == 1 and answer.strip().upper() in string.ascii_uppercase:
        return string.ascii_uppercase.index(answer.strip().upper())
    return None
