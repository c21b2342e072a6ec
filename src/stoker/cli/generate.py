"""`stoker generate`: generate text with a model, and print it as it is generated."""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from stoker.api.evaluation import open_tokenizer
from stoker.cli.arguments import model_path
from stoker.cli.masked_lm import fill_masked
from stoker.cli.screen import show
from stoker.models.generate import Settings, TextPiece
from stoker.models.generate import generate as generate_text
from stoker.models.load import load_model
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.files import read_regular

SETTINGS = ("tokens", "temperature", "top_k", "top_p", "seed", "samples")  # options that override a default
MAX_PROMPT_BYTES = 16 << 20


def generate(args: argparse.Namespace) -> int:
    options = {name: getattr(args, name) for name in SETTINGS if getattr(args, name) is not None}
    settings = Settings(**options, stop=tuple(args.stop))
    prompts = _prompts(args)
    loaded = load_model(model_path(args.where, args.runs), step=args.step, device=args.device)
    if loaded.shape.masked:
        return fill_masked(args, loaded, prompts)
    tokenizer = open_tokenizer(loaded, args.tokenizer)
    pieces = generate_text(
        loaded.model,
        loaded.shape,
        tokenizer.tokenizer,
        tokenizer.end_id,
        prompts,
        settings,
        begin=tokenizer.begin_id,
    )
    show_pieces = _show_json if args.json else _show_text
    show_pieces(_in_order(pieces), [(prompt, sample) for prompt in prompts for sample in range(settings.samples)])
    return contract.EXIT_DONE


def _prompts(args: argparse.Namespace) -> list[str]:
    """From the command line, a file, or stdin; otherwise one empty prompt."""
    prompts: list[str] = list(args.prompts)
    if args.file:
        lines = _lines(_read(args.file))
        if not lines:
            raise UserError(f"{args.file} has no prompts", remedy="Write one per line")
        prompts += lines
    elif not prompts and not sys.stdin.isatty():
        piped = sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1)
        if len(piped) > MAX_PROMPT_BYTES:
            raise UserError(f"the prompts are more than {MAX_PROMPT_BYTES >> 20} MiB", remedy="Give fewer at a time")
        prompts = _lines(piped)
    for prompt in prompts:
        try:
            prompt.encode()
        except UnicodeEncodeError as e:  # Python decodes an argument that is not UTF-8 to surrogates
            raise UserError(f"the prompt {prompt!a} is not UTF-8 text", remedy="Convert it first") from e
    return prompts or [""]


def _lines(data: bytes) -> list[str]:
    try:
        return [line.removesuffix("\r") for line in data.decode().split("\n") if line.strip()]
    except UnicodeDecodeError as e:
        raise UserError("the prompts are not UTF-8 text", remedy="Convert them first") from e


def _read(file: Path) -> bytes:
    try:
        return read_regular(file, max_bytes=MAX_PROMPT_BYTES)
    except OSError as e:
        raise UserError(f"cannot read {file}: {e.strerror}", remedy="Name a file of prompts, one per line") from e


def _in_order(pieces: Iterator[TextPiece]) -> Iterator[TextPiece]:
    """Texts are generated in parallel and printed one after another: the first unfinished one as it is generated."""
    waiting: defaultdict[int, list[TextPiece]] = defaultdict(list)
    current = 0
    for piece in pieces:
        waiting[piece.row].append(piece)
        while shown := waiting.pop(current, []):
            yield from shown
            if not shown[-1].ending:
                break
            current += 1


def _show_text(pieces: Iterator[TextPiece], rows: list[tuple[str, int]]) -> None:
    current = -1
    for piece in pieces:
        if piece.row > current:
            current = piece.row
            if len(rows) > 1:
                print(f"--- {current + 1} of {len(rows)}")
            show(rows[current][0], end="")
        show(piece.text, end="\n" if piece.ending else "", flush=True)


def _show_json(pieces: Iterator[TextPiece], rows: list[tuple[str, int]]) -> None:
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
