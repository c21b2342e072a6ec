"""`stoker eval`: loss and perplexity of a model on a text."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from stoker.api.evaluation import evaluation_data, open_tokenizer, sequence_length, show_nothing
from stoker.cli import output
from stoker.cli.arguments import model_path
from stoker.cli.masked_lm import eval_masked
from stoker.cli.progress.counting import show_count
from stoker.cli.progress.preparing import show_preparing
from stoker.data.tokenizer import has_tokenizer, load_folder
from stoker.inference.evaluate import Score, evaluate, precision_of, token_widths
from stoker.inference.tasks import choose, last_words, read_choices, read_last_words
from stoker.models import model_spec
from stoker.models.load import LoadedModel, load_model
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.units import short_duration, short_number

TASKS = {"choice": (read_choices, choose), "last-word": (read_last_words, last_words)}
FIGURES = ("accuracy", "accuracy_by_length", "perplexity")


def eval(args: argparse.Namespace) -> int:
    for name in ("sequences", "length"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise UserError(f"--{name} is {getattr(args, name)}", remedy="Give 1 or more, or leave it out")
    loaded = load_model(model_path(args.where, args.runs), step=args.step, device=args.device)
    if "" in args.data:
        raise UserError("--data is empty", remedy="Name files, folders or globs of text, or a prepared set")
    if args.task:
        return _task(args, loaded)
    if loaded.shape.masked:
        return eval_masked(args, loaded)
    length, vocab = sequence_length(loaded, args.length), loaded.shape.vocab
    precision = precision_of(loaded)
    assert vocab is not None
    show = show_nothing if args.json else show_preparing
    data = evaluation_data(loaded, args.data, split=args.split, tokenizer=args.tokenizer, show=show)
    with data as (name, tokens, split):
        widths = token_widths(load_folder(tokens.tokenizer), vocab) if has_tokenizer(tokens.tokenizer) else None
        with show_count("evaluating", "sequences") as progress:
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
        print(output.pairs([*head_rows, *_rows(score), ("precision", precision)]))
    return contract.EXIT_DONE


def _task(args: argparse.Namespace, loaded: LoadedModel) -> int:
    if len(args.data) != 1:
        raise UserError("--task needs one file of questions", remedy="Name it: --data FILE")
    if model_spec(loaded.shape.family).objective != "causal":
        raise UserError(
            f"{loaded.origin} does not predict the next token, and --task needs that",
            remedy="Leave --task out, or name another model",
        )
    read, answer = TASKS[args.task]
    questions, precision = read(Path(args.data[0])), precision_of(loaded)
    tokenizer = open_tokenizer(loaded, args.tokenizer)
    with show_count("answering", "texts") as progress:
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


def _rows(score: Score) -> list[tuple[str, str]]:
    rows = [("loss", f"{score.loss:.4f}")]
    if score.perplexity is not None:
        rows.append(("perplexity", f"{score.perplexity:.4g}"))
    if score.bits_per_byte is not None:
        rows.append(("bits/byte", f"{score.bits_per_byte:.4f}"))
    speed = short_number(score.tokens_per_second)
    return [*rows, ("tokens", f"{score.tokens:,} in {short_duration(score.seconds)}, {speed} a second")]
