"""`stoker generate`: text from a model, shown while it is written."""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from stoker.cli.masked import fill_masked
from stoker.cli.models import model_arguments, open_model, open_tokenizer
from stoker.cli.places import path
from stoker.cli.screen import show
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.regular import read_regular
from stoker.train.generate import Piece, Settings
from stoker.train.generate import generate as write

LARGEST_FILE = 16 << 20  # bytes of prompts


def generate_arguments(parser: argparse.ArgumentParser) -> None:
    usual = Settings()
    model_arguments(parser)
    parser.add_argument(
        "prompts", nargs="*", metavar="PROMPT", help="text to continue, or to fill in; none begins a document"
    )
    parser.add_argument("--file", type=path, metavar="FILE", help="a file of prompts, one a line")
    parser.add_argument(
        "--tokens", type=int, default=usual.tokens, metavar="N", help=f"the most to write ({usual.tokens})"
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=usual.temperature,
        metavar="T",
        help=f"0 takes the likeliest token each time ({usual.temperature})",
    )
    parser.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens")
    parser.add_argument(
        "--top-p", type=float, default=usual.top_p, metavar="P", help="draw from the likeliest that make up P (1)"
    )
    parser.add_argument(
        "--seed", type=int, default=usual.seed, metavar="S", help=f"the same gives the same ({usual.seed})"
    )
    parser.add_argument("--samples", type=int, default=usual.samples, metavar="N", help="texts for each prompt (1)")
    parser.add_argument("--stop", action="append", default=[], metavar="WORD", help="end a text there; may be repeated")
    parser.add_argument("--json", action="store_true", help="one object a text")


def generate(args: argparse.Namespace) -> int:
    settings = Settings(
        tokens=args.tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        seed=args.seed,
        samples=args.samples,
        stop=tuple(args.stop),
    )
    prompts = _prompts(args)
    loaded = open_model(args)
    if loaded.shape.masked:
        return fill_masked(args, loaded, prompts)
    tokenizer = open_tokenizer(args, loaded)
    written = write(
        loaded.model,
        loaded.shape,
        tokenizer.tokenizer,
        tokenizer.end_id,
        prompts,
        settings,
        begin=tokenizer.begin_id,
    )
    show = _show_objects if args.json else _show_text
    show(_in_order(written), [(prompt, sample) for prompt in prompts for sample in range(settings.samples)])
    return contract.EXIT_DONE


def _prompts(args: argparse.Namespace) -> list[str]:
    """From the command line, a file, or what is piped in; else one empty prompt."""
    prompts: list[str] = list(args.prompts)
    if args.file:
        lines = _lines(_read(args.file))
        if not lines:
            raise UserError(f"{args.file} has no prompts", remedy="Write one a line")
        prompts += lines
    elif not prompts and not sys.stdin.isatty():
        piped = sys.stdin.buffer.read(LARGEST_FILE + 1)
        if len(piped) > LARGEST_FILE:
            raise UserError(f"the prompts are more than {LARGEST_FILE >> 20} MiB", remedy="Give fewer at a time")
        prompts = _lines(piped)
    for prompt in prompts:
        try:
            prompt.encode()
        except UnicodeEncodeError as e:  # a word of the command line that is not UTF-8 comes with half characters
            raise UserError(f"the prompt {prompt!a} is not UTF-8 text", remedy="Convert it first") from e
    return prompts or [""]


def _lines(data: bytes) -> list[str]:
    try:
        return [line.removesuffix("\r") for line in data.decode().split("\n") if line.strip()]
    except UnicodeDecodeError as e:
        raise UserError("the prompts are not UTF-8 text", remedy="Convert them first") from e


def _read(file: Path) -> bytes:
    try:
        return read_regular(file, most=LARGEST_FILE)
    except OSError as e:
        raise UserError(f"cannot read {file}: {e.strerror}", remedy="Name a file of prompts, one a line") from e


def _in_order(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Rows are written side by side and shown one after another: the first of those that are left, as it comes."""
    held: defaultdict[int, list[Piece]] = defaultdict(list)
    current = 0
    for piece in pieces:
        held[piece.row].append(piece)
        while shown := held.pop(current, []):
            yield from shown
            if not shown[-1].ending:
                break
            current += 1


def _show_text(pieces: Iterator[Piece], rows: list[tuple[str, int]]) -> None:
    begun = -1
    for piece in pieces:
        if piece.row > begun:
            begun = piece.row
            if len(rows) > 1:
                print(f"--- {begun + 1} of {len(rows)}")
            show(rows[begun][0], end="")
        show(piece.text, end="\n" if piece.ending else "", flush=True)


def _show_objects(pieces: Iterator[Piece], rows: list[tuple[str, int]]) -> None:
    text = ""
    for piece in pieces:
        text += piece.text
        if piece.ending is None:
            continue
        prompt, sample = rows[piece.row]
        record = {"prompt": prompt, "sample": sample, "text": text, "tokens": len(piece.ending.ids)}
        record |= {"finish": piece.ending.reason, "seconds": round(piece.ending.seconds, 4)}
        print(json.dumps(record), flush=True)
        text = ""
