"""What `stoker eval` and `stoker generate` do with a masked model."""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from stoker.cli import output
from stoker.cli.models import length_of, open_tokenizer, refuse_other_tokenizer
from stoker.cli.progress import counting, preparing
from stoker.data.hdf5 import are_hdf5
from stoker.data.pairs import Pairs, PairSet, PairSplit
from stoker.data.prepare import ignore, is_prepared
from stoker.data.sets import open_set
from stoker.observe.batch import token_set
from stoker.spec import contract
from stoker.spec.data import Data
from stoker.spec.errors import UserError
from stoker.spec.run import Objective
from stoker.train.evaluate import precision_of, tokenise
from stoker.train.evaluate_masked import MaskedScore, evaluate_masked
from stoker.train.fill import fill
from stoker.train.load import LoadedModel

HELD_OUT = "validation"


class Chosen(NamedTuple):
    name: str
    pairs: PairSet
    split: PairSplit


def eval_masked(args: argparse.Namespace, loaded: LoadedModel) -> int:
    precision = precision_of(loaded)
    of_run = loaded.run.spec() if loaded.run else None
    with _chosen(args, loaded) as (name, pairs, split), counting("evaluating", "sequences") as progress:
        if pairs.vocab > (loaded.shape.vocab or 0):
            raise UserError(
                f"the tokens of {name} go up to {pairs.vocab - 1}, and the model knows {loaded.shape.vocab}",
                remedy="Name the tokenizer that it was trained with: --tokenizer DIR",
            )
        score = evaluate_masked(
            loaded.model,
            pairs,
            split,
            of_run.objective if of_run else Objective(),
            seed=of_run.seed if of_run else 0,
            sequences=args.sequences,
            precision=precision,
            progress=progress,
        )
        length = pairs.index.length
    if args.json:
        head = {"model": loaded.origin, "step": loaded.step, "data": name, "length": length, "precision": precision}
        print(json.dumps(head | _figures(score)))
    else:
        rows = [("model", loaded.origin), ("data", f"{name}: {score.sequences:,} pairs of up to {length} tokens")]
        print(output.pairs([*rows, *_lines(score), ("precision", precision)]))
    return contract.EXIT_DONE


def fill_masked(args: argparse.Namespace, loaded: LoadedModel, prompts: list[str]) -> int:
    found = fill(loaded, open_tokenizer(args, loaded).tokenizer, prompts)
    for one in found:
        if args.json:
            masks = [[{"word": word, "probability": share} for word, share in row] for row in one.choices]
            print(json.dumps({"prompt": one.prompt, "text": one.text, "masks": masks}))
        else:
            print(output.printable(one.text))
    return contract.EXIT_DONE


@contextmanager
def _chosen(args: argparse.Namespace, loaded: LoadedModel) -> Iterator[Chosen]:
    if not args.data:
        if loaded.run is None:
            raise UserError(f"{loaded.origin} has no data of its own", remedy="Name some: --data FILE")
        yield _of_set(f"run '{loaded.run.name}'", token_set(loaded.run), args)
        return
    name, like = ", ".join(args.data), loaded.run.spec().data if loaded.run else Data(path=".")
    data = like.model_copy(update={"path": args.data, "tokenizer": None})
    if is_prepared(data):
        prepared = open_set(Path(args.data[0]))
        if isinstance(prepared, PairSet):
            refuse_other_tokenizer(name, prepared, args, loaded)
        yield _of_set(name, prepared, args)
        return
    if args.split:
        raise UserError("--split is for prepared sets, and --data names files", remedy="Leave --split out")
    with TemporaryDirectory(prefix="stoker-eval-") as place:
        with nullcontext(ignore) if args.json else preparing() as progress:
            tokenizer = None if are_hdf5(args.data) else open_tokenizer(args, loaded)
            pairs = Pairs(length=length_of(args, loaded), vocab=loaded.shape.vocab)
            made = tokenise(data, tokenizer, Path(place), progress, pairs=pairs)
        assert isinstance(made, PairSet)
        if not made.train.records:
            raise UserError(f"{name} has no two sentences to make a pair of", remedy="Name a longer text")
        yield Chosen(name, made, made.train)


def _of_set(name: str, pairs: object, args: argparse.Namespace) -> Chosen:
    if not isinstance(pairs, PairSet):
        raise UserError(
            f"{name} holds tokens, and a masked model is judged by sentence pairs",
            remedy="Name the text itself: --data FILE",
        )
    split = pairs.train if args.split == "train" else pairs.validation
    if not split.records:
        raise UserError(
            f"{name} has held out no pairs" if split is pairs.validation else f"{name} has no pairs to train on",
            remedy="Name some with --data FILE, or take what was trained on with --split train",
        )
    split.check_when_read()
    return Chosen(f"{name}, {args.split or HELD_OUT}", pairs, split)


def _figures(score: MaskedScore) -> dict[str, float | int]:
    return {
        "loss": score.loss,
        **score.parts,
        "word_accuracy": score.word_accuracy,
        "next_sentence_accuracy": score.next_accuracy,
        "sequences": score.sequences,
        "tokens": score.tokens,
        "masked_words": score.words,
        "seconds": round(score.seconds, 3),
    }


def _lines(score: MaskedScore) -> list[tuple[str, str]]:
    mlm, nsp = score.parts.values()
    return [
        ("loss", f"{score.loss:.4f}: {mlm:.4f} for masked words, {nsp:.4f} for next sentences"),
        ("words", f"{score.word_accuracy:.1%} of {score.words:,} masked words are the likeliest"),
        ("sentences", f"{score.next_accuracy:.1%} of {score.sequences:,} next sentences are told right"),
        ("time", f"{output.duration(score.seconds)}, {score.tokens:,} tokens"),
    ]
