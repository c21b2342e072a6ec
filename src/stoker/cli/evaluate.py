"""`stoker eval`: how well a model predicts a text."""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from stoker.cli import output
from stoker.cli.masked import eval_masked
from stoker.cli.models import (
    has_tokenizer,
    length_of,
    model_arguments,
    open_model,
    open_tokenizer,
    refuse_other_tokenizer,
)
from stoker.cli.progress import counting, preparing
from stoker.data.pairs import AnySet
from stoker.data.prepare import ignore, is_prepared
from stoker.data.sets import open_set
from stoker.data.shards import Split, TokenSet
from stoker.data.tokenizer import load_folder
from stoker.observe.batch import token_set
from stoker.spec import contract
from stoker.spec.data import Data
from stoker.spec.errors import UserError
from stoker.train.evaluate import Score, evaluate, precision_of, token_widths, tokenise
from stoker.train.load import LoadedModel
from stoker.train.models import model_spec
from stoker.train.tasks import choose, last_words, read_choices, read_last_words

HELD_OUT = "validation"
TASKS = {"choice": (read_choices, choose), "last-word": (read_last_words, last_words)}
FIGURES = ("accuracy", "accuracy_by_length", "perplexity")


class Chosen(NamedTuple):
    name: str
    """In words."""
    tokens: TokenSet
    split: Split


def eval_arguments(parser: argparse.ArgumentParser) -> None:
    model_arguments(parser)
    parser.add_argument(
        "--data", nargs="+", default=[], metavar="FILE", help="text or a prepared set (what the run itself held out)"
    )
    parser.add_argument(
        "--task", choices=tuple(TASKS), help="--data has questions: choices between continuations, or last words"
    )
    parser.add_argument("--split", choices=(HELD_OUT, "train"), help=f"which part of a prepared set ({HELD_OUT})")
    parser.add_argument("--sequences", type=int, metavar="N", help="so many, spread over the data (all of it)")
    parser.add_argument("--length", type=int, metavar="N", help="tokens in a sequence (the run's, or the context)")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def eval(args: argparse.Namespace) -> int:
    for name in ("sequences", "length"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise UserError(f"--{name} is {getattr(args, name)}", remedy="Give 1 or more, or leave it out")
    loaded = open_model(args)
    if "" in args.data:
        raise UserError("--data names nothing", remedy="Name files, folders or globs of text, or a prepared set")
    if args.task:
        return _task(args, loaded)
    if loaded.shape.masked:
        return eval_masked(args, loaded)
    length, vocab = length_of(args, loaded), loaded.shape.vocab
    precision = precision_of(loaded)
    assert vocab is not None
    with _chosen(args, loaded) as (name, tokens, split):
        if tokens.vocab > vocab:
            raise UserError(
                f"the tokens of {name} go up to {tokens.vocab - 1}, and the model knows {vocab}",
                remedy="Name the tokenizer that it was trained with: --tokenizer DIR",
            )
        widths = token_widths(load_folder(tokens.tokenizer), vocab) if has_tokenizer(tokens) else None
        with counting("evaluating", "sequences") as progress:
            score = evaluate(
                loaded.model,
                loaded.shape,
                split,
                length=length,
                sequences=args.sequences,
                precision=precision,
                widths=widths,
                progress=progress,
            )
    if args.json:
        head = {"model": loaded.origin, "step": loaded.step, "data": name, "length": length, "precision": precision}
        print(json.dumps(head | _figures(score)))
    else:
        head_rows = [("model", loaded.origin), ("data", f"{name}: {score.sequences:,} sequences of {length}")]
        print(output.pairs([*head_rows, *_lines(score), ("precision", precision)]))
    return contract.EXIT_DONE


def _task(args: argparse.Namespace, loaded: LoadedModel) -> int:
    if len(args.data) != 1:
        raise UserError("--task needs one file of questions", remedy="Name it: --data FILE")
    if model_spec(loaded.shape.family).objective != "causal":
        raise UserError(
            f"{loaded.origin} does not predict the next token, and --task asks for that",
            remedy="Leave --task out, or name another model",
        )
    read, answer = TASKS[args.task]
    questions, tokenizer, precision = read(Path(args.data[0])), open_tokenizer(args, loaded), precision_of(loaded)
    with counting("answering", "texts") as progress:
        outcome = answer(
            loaded.model,
            loaded.shape,
            tokenizer.tokenizer,
            tokenizer.end_id,
            questions,
            precision=precision,
            progress=progress,
        )
    figures = {key: value for key, value in asdict(outcome).items() if value is not None}
    if args.json:
        head = {"model": loaded.origin, "step": loaded.step, "data": args.data[0], "task": args.task}
        print(json.dumps(head | {"precision": precision} | figures))
    else:
        rows = [("model", loaded.origin), ("data", f"{args.data[0]}: {outcome.questions:,} questions ({args.task})")]
        rows += [(key.replace("_", " "), f"{figures[key]:.4g}") for key in FIGURES if key in figures]
        print(output.pairs([*rows, ("precision", precision)]))
    return contract.EXIT_DONE


@contextmanager
def _chosen(args: argparse.Namespace, loaded: LoadedModel) -> Iterator[Chosen]:
    name = ", ".join(args.data)
    if not args.data:
        if loaded.run is None:
            raise UserError(f"{loaded.origin} has no data of its own", remedy="Name some: --data FILE")
        yield _of_set(f"run '{loaded.run.name}'", token_set(loaded.run), args)
        return
    like = loaded.run.spec().data if loaded.run else Data(path=".")
    data = like.model_copy(update={"path": args.data, "mix": None, "stream": False, "tokenizer": None})
    if is_prepared(data):
        tokens = open_set(Path(args.data[0]))
        refuse_other_tokenizer(name, tokens, args, loaded)
        yield _of_set(name, tokens, args)
        return
    if args.split:
        raise UserError("--split is for prepared sets, and --data names text", remedy="Leave --split out")
    with TemporaryDirectory(prefix="stoker-eval-") as place:
        with nullcontext(ignore) if args.json else preparing() as progress:
            tokens = tokenise(data, open_tokenizer(args, loaded), Path(place), progress)
        assert isinstance(tokens, TokenSet)
        yield Chosen(name, tokens, tokens.train)


def _of_set(name: str, tokens: AnySet, args: argparse.Namespace) -> Chosen:
    if not isinstance(tokens, TokenSet):
        raise UserError(f"{name} holds sentence pairs for masked models", remedy="Name the text itself: --data FILE")
    split = tokens.train if args.split == "train" else tokens.validation
    if not split.tokens:
        raise UserError(
            f"{name} has held out no text" if split is tokens.validation else f"{name} has no text to train on",
            remedy="Name some with --data FILE, or take what was trained on with --split train",
        )
    split.check_when_read()
    return Chosen(f"{name}, {args.split or HELD_OUT}", tokens, split)


def _figures(score: Score) -> dict[str, float | int | None]:
    return {
        "loss": score.loss,
        "perplexity": score.perplexity,
        "bits_per_byte": score.bits_per_byte,
        "sequences": score.sequences,
        "tokens": score.tokens,
        "bytes": score.bytes,
        "seconds": round(score.seconds, 3),
        "tokens_per_second": round(score.tokens_per_second, 1),
    }


def _lines(score: Score) -> list[tuple[str, str]]:
    rows = [("loss", f"{score.loss:.4f}")]
    if score.perplexity is not None:
        rows.append(("perplexity", f"{score.perplexity:.4g}"))
    if score.bits_per_byte is not None:
        rows.append(("bits/byte", f"{score.bits_per_byte:.4f}"))
    speed = output.number(score.tokens_per_second)
    return [*rows, ("tokens", f"{score.tokens:,} in {output.duration(score.seconds)}, {speed} a second")]
