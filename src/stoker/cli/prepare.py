"""`stoker prepare`: turn text into token shards, or into sentence pairs for masked models."""

import argparse
import json
import shlex
import time
from pathlib import Path

from stoker.cli import output
from stoker.cli.arguments import path
from stoker.cli.progress.preparing import show_preparing
from stoker.data.any_set import AnySet
from stoker.data.bert.export import export
from stoker.data.bert.masking import Masking
from stoker.data.bert.pairs import Pairs, PairSet
from stoker.data.prepare import prepare as prepare_tokens
from stoker.spec import contract
from stoker.spec.data import Data
from stoker.spec.errors import UserError
from stoker.spec.load import load
from stoker.spec.run import MIN_PAIR_TOKENS
from stoker.spec.units import short_duration

LONGEST_PAIR = 1 << 16  # tokens
MOST_WORKERS = 1024


def prepare_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "data",
        nargs="+",
        metavar="DATA",
        help="files, folders or globs of text, JSONL, JSON, CSV, Parquet; hf://, s3://, gs://, https://; "
        "or your own module:function",
    )
    parser.add_argument("-o", "--out", type=path, required=True, metavar="DIR", help="folder for the token shards")
    parser.add_argument(
        "--tokenizer", metavar="X", help="a number trains one of that size (8000); or a folder or hub name"
    )
    parser.add_argument("--field", metavar="F", help="the field that holds the text (text)")
    parser.add_argument("--validation", metavar="SHARE", help="share of the tokens held out (1%%)")
    parser.add_argument("--skip-bad", action="store_true", help="skip and count records that cannot be read")
    parser.add_argument("--pairs", type=int, metavar="N", help="sentence pairs of up to N tokens, for bert")
    parser.add_argument("--hdf5", action="store_true", help="with --pairs: masked HDF5 files, for other trainers")
    parser.add_argument(
        "--predictions", type=int, default=20, metavar="N", help="with --hdf5: at most so many masked words (20)"
    )
    parser.add_argument("--whole-words", action="store_true", help="with --hdf5: mask whole words")
    parser.add_argument("--workers", type=int, metavar="N", help="processes (one per core)")


def prepare(args: argparse.Namespace) -> int:
    if args.workers is not None and not 1 <= args.workers <= MOST_WORKERS:
        remedy = f"Give 1 to {MOST_WORKERS}, or leave it out for one per core"
        raise UserError(f"--workers is {args.workers}", remedy=remedy)
    data, pairs = _data(args), _pairs(args)
    began = time.monotonic()
    with show_preparing() as progress:
        if args.hdf5 and pairs:
            masking = Masking(predictions=args.predictions, whole_words=args.whole_words)
            tokens: AnySet = export(data, args.out, pairs, masking, workers=args.workers, progress=progress)
        else:
            tokens = prepare_tokens(data, args.out, pairs=pairs, workers=args.workers, progress=progress)
    count = tokens.index.skipped
    skipped = f"; {count} record{'s' * (count != 1)} skipped" if count else ""
    rows = [
        *_pair_rows(tokens),
        ("tokens", f"{tokens.train.tokens:,} to train on, {tokens.validation.tokens:,} held out"),
        ("documents", f"{tokens.index.documents:,}, {output.size(tokens.index.bytes)} of text{skipped}"),
        ("tokenizer", f"{tokens.vocab:,} tokens"),
        ("time", short_duration(time.monotonic() - began)),
        ("folder", str(args.out.absolute())),
    ]
    if pairs is None:
        rows.append(("next", f"stoker init {shlex.quote(str(args.out))}"))
    print(output.pairs(rows))
    return contract.EXIT_DONE


def _pairs(args: argparse.Namespace) -> Pairs | None:
    if args.pairs is None:
        if args.hdf5:
            raise UserError("--hdf5 writes sentence pairs", remedy="Give their length: --pairs 128 --hdf5")
        return None
    if not MIN_PAIR_TOKENS <= args.pairs <= LONGEST_PAIR:
        remedy = f"Give {MIN_PAIR_TOKENS} to {LONGEST_PAIR} tokens, such as --pairs 128"
        raise UserError(f"--pairs is {args.pairs}", remedy=remedy)
    if not 1 <= args.predictions <= args.pairs:
        raise UserError(f"--predictions is {args.predictions}", remedy=f"Give 1 to {args.pairs}, such as 20")
    return Pairs(length=args.pairs)


def _pair_rows(tokens: AnySet) -> list[tuple[str, str]]:
    if not isinstance(tokens, PairSet):
        return []
    return [("pairs", f"{tokens.train.records:,} to train on, {tokens.validation.records:,} held out")]


def _data(args: argparse.Namespace) -> Data:
    """Read like `data` in a run file, so that both accept the same values and report the same errors."""
    paths = json.dumps(args.data, ensure_ascii=False)  # YAML does not join the two halves of an escaped emoji
    overrides = [f"data.path={paths}", f"data.skip_bad={json.dumps(args.skip_bad)}"]
    if args.tokenizer:
        trained = args.tokenizer[:1].isdigit() and not Path(args.tokenizer).exists()
        overrides.append(f"data.tokenizer{'.train' if trained else ''}={args.tokenizer}")
    if args.field:
        overrides.append(f"data.field={args.field}")
    if args.validation:
        overrides.append(f"data.validation={args.validation}")
    return load(None, [*overrides, "until.steps=1"]).training.data  # a spec must have an end; it is not used
