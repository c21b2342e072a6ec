"""A first run file for the user's data: inspects the data, and sizes model, tokenizer, batch and steps to it."""

import csv
import glob
import gzip
import io
import json
import math
import os
import shlex
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from stoker.spec.bounded import parse_json, read_json
from stoker.spec.document import is_plain_text
from stoker.spec.errors import UserError
from stoker.spec.estimate import parameters
from stoker.spec.files import check_regular, open_regular
from stoker.spec.load import clean_name
from stoker.spec.model import Model
from stoker.spec.presets import presets

FORMATS = {".jsonl": "JSONL", ".ndjson": "JSONL", ".json": "JSON", ".csv": "CSV", ".tsv": "CSV", ".parquet": "Parquet"}
EXPANSION = {".gz": 3, ".zst": 3, ".parquet": 2}  # bytes of text per byte of the file, roughly
BYTES_PER_TOKEN = 4
TOKENS_PER_PARAMETER = 20  # with more, a larger model learns more from the same compute
MAX_EPOCHS = 4  # more passes over the same text improve little
HEAD_BYTES = 1 << 20  # of a file that are inspected
MAX_TOKENS = 10**15
MIN_STEPS = 50  # per epoch: with fewer the batch is too large for the data


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSummary:
    """What the data contains."""

    paths: list[Path]
    files: int
    formats: list[str]
    """Most frequent first."""
    bytes: int
    """Of text, uncompressed: an estimate."""
    tokens: int
    field: str | None = None
    """The field with the text, where it is not `text`."""
    vocab: int | None = None
    """The size of the tokenizer, for data that is already prepared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tier:
    """Sizes for data of up to `tokens` tokens."""

    tokens: float
    model: str
    vocab: int
    sequences: int
    length: int
    lr: str


TIERS = (
    Tier(tokens=1e6, model="gpt2-demo", vocab=2048, sequences=16, length=128, lr="1e-3"),
    Tier(tokens=50e6, model="gpt2-demo", vocab=8000, sequences=32, length=256, lr="1e-3"),
    Tier(tokens=500e6, model="gpt2-micro", vocab=16000, sequences=128, length=256, lr="6e-4"),
    Tier(tokens=10e9, model="gpt2-small", vocab=32000, sequences=512, length=1024, lr="6e-4"),
    Tier(tokens=math.inf, model="gpt2-medium", vocab=50000, sequences=512, length=1024, lr="3e-4"),
)


def summarize(places: Sequence[str]) -> DataSummary:
    if remote := next((place for place in places if "://" in place), None):
        raise UserError(
            f"{remote} is not on this machine, and the text must be read to create a run file",
            remedy=f"Write a run file by hand, with data: {remote}",
        )
    if unprintable := next((place for place in places if not place or not place.isprintable()), None):
        raise UserError(f"{unprintable!a} cannot be written into a run file", remedy="Rename it first")
    if "" in places:
        raise UserError("a path is empty", remedy="Name files, folders or globs that contain text")
    paths = [Path(os.path.expanduser(place)) for place in places]
    if len(paths) == 1 and (paths[0] / "index.json").is_file():
        return _prepared(paths[0])
    files = sorted({file for path in paths for file in _files(path)})
    size = sum(math.prod(EXPANSION.get(s, 1) for s in file.suffixes[-2:]) * file.stat().st_size for file in files)
    if not size:
        raise UserError(f"{', '.join(places)}: it contains no text", remedy="Name files or folders that contain text")
    formats = Counter(_format(file) for file in files)
    return DataSummary(
        paths=paths,
        files=len(files),
        formats=[name for name, _ in formats.most_common()],
        bytes=size,
        tokens=max(1, size // BYTES_PER_TOKEN),
        field=next((field for file in files if (field := _field(file))), None),
    )


def starter(summary: DataSummary, out: Path) -> str:
    """The text of a run file that will be `out`."""
    containing = next(
        (path for path in summary.paths if path.is_dir() and out.resolve().is_relative_to(path.resolve())), None
    )
    if containing:  # the run file would become part of the data
        raise UserError(
            f"{out} would be inside its own data {containing}", remedy="Write it elsewhere, such as -o ../run.yaml"
        )
    tier = next(tier for tier in TIERS if summary.tokens <= tier.tokens)
    sequences, length = _batch(summary.tokens, tier)
    per_step = sequences * length
    size = parameters(Model.model_validate(presets("model")[tier.model].document.values), summary.vocab or tier.vocab)
    enough = min(MAX_EPOCHS * summary.tokens, TOKENS_PER_PARAMETER * size)
    steps = _round(max(MIN_STEPS, enough // per_step))
    places = [_quoted(path, out.parent) for path in summary.paths]
    return f"""\
# Start it with: stoker train {shlex.quote(out.name)}   (override any value: until.steps=100)
# stoker explain KEY {shlex.quote(out.name)} shows what a key means and where its value comes from.

name: {_name(summary.paths[0])}  # of the run and its folder under runs/
model: {tier.model}  # about {_human(size)} parameters; stoker presets lists the others

data:
  path: {places[0] if len(places) == 1 else f"[{', '.join(places)}]"}  # {_describe(summary)}
{_reading(summary, tier)}
batch:  # one optimizer step, over all workers: {per_step:,} tokens
  sequences: {sequences}
  length: {length}

optim:
  lr: {tier.lr}  # the peak rate; lower it if the loss jumps
  warmup: 2%
  schedule: cosine
  floor: 10%

until:  # the first limit ends the run; others are tokens, epochs and time (such as 2h)
  steps: {steps}  # {steps * per_step / summary.tokens:.1f} passes over the data

eval: {{every: {max(10, _round(steps // 20))}}}
checkpoint: {{every: auto, keep: 3}}

on:
  kind: local
  workers: auto  # one per GPU, or one on a machine without GPUs
"""


def _reading(summary: DataSummary, tier: Tier) -> str:
    """How the text is read; empty for prepared data."""
    if summary.vocab:
        return ""
    field = f"  field: {json.dumps(summary.field)}  # the field with the text\n" if summary.field else ""
    return f"""\
  tokenizer: {{train: {tier.vocab}}}  # trained on this text; or a folder, or a Hugging Face name such as gpt2
{field}  validation: 1%  # held out to measure the loss on text the model has not seen
"""


def _prepared(folder: Path) -> DataSummary:
    try:
        index = read_json(folder / "index.json")
        tokens = sum(shard["tokens"] for shard in index["train"])
        if not (1 <= tokens <= MAX_TOKENS and 1 <= index["vocab"] <= MAX_TOKENS and index["bytes"] >= 0):
            raise ValueError("numbers out of range")
        return DataSummary(
            paths=[folder],
            files=len(index["train"]) + len(index["validation"]),
            formats=["token shards"],
            bytes=index["bytes"],
            tokens=tokens,
            vocab=index["vocab"],
        )
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise UserError(
            f"{folder / 'index.json'} is not the index of a token set", remedy="Name the text files instead"
        ) from e


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if path.is_dir():
        below = (file for file in path.rglob("*") if file.is_file())
        return [file for file in below if not any(part.startswith(".") for part in file.relative_to(path).parts)]
    files = [Path(file) for file in glob.glob(str(path), recursive=True) if os.path.isfile(file)]
    if not files:
        if path.exists():
            check_regular(path)
        raise UserError(f"there is no {path}", remedy="Name files, folders or globs that contain text")
    return files


def _format(file: Path) -> str:
    suffixes = [suffix for suffix in file.suffixes if suffix not in (".gz", ".zst")]
    return FORMATS.get(suffixes[-1].lower(), "text") if suffixes else "text"


def _field(file: Path) -> str | None:
    """The name of the longest text in the first record, where no field is called `text`."""
    try:
        with _open(file) as opened:
            record = _first_record(file, opened.read(HEAD_BYTES))
    except (OSError, EOFError, ValueError, csv.Error, zlib.error):
        return None  # `prepare` reports what is wrong with it
    if not isinstance(record, dict) or "text" in record:
        return None
    texts = {name: value for name, value in record.items() if name and isinstance(value, str)}
    return max(texts, key=lambda name: len(texts[name]), default=None)


def _first_record(file: Path, head: bytes) -> Any:
    kind, text = _format(file), head.decode("utf-8", errors="ignore")
    if kind == "JSONL":
        return parse_json(text.partition("\n")[0])
    if kind == "CSV":
        comma = "\t" if ".tsv" in file.suffixes else ","
        return next(csv.DictReader(io.StringIO(text), delimiter=comma), None)
    return None


def _open(file: Path) -> BinaryIO | gzip.GzipFile:
    check_regular(file)
    return gzip.open(file, "rb") if file.suffix == ".gz" else open_regular(file)


def _batch(tokens: int, tier: Tier) -> tuple[int, int]:
    """The tier's batch, or a smaller one that leaves enough steps per epoch."""
    length = tier.length
    while length > 8 and length * MIN_STEPS > tokens:
        length //= 2
    room = max(1, tokens // (length * MIN_STEPS))
    return min(tier.sequences, 2 ** (room.bit_length() - 1)), length


def _quoted(path: Path, folder: Path) -> str:
    """Relative to the run file when the data is below its folder, so that both can be moved together."""
    absolute, home = Path(os.path.abspath(path)), Path(os.path.abspath(folder))
    place = f"./{absolute.relative_to(home)}" if absolute.is_relative_to(home) else str(absolute)
    return json.dumps(place, ensure_ascii=False)


def _name(path: Path) -> str:
    """Named after the data: ./books, books/*.txt and books.jsonl.gz all give `books`."""
    place = Path(os.path.abspath(path))
    while glob.has_magic(place.name) and not place.exists():
        place = place.parent
    packed = place.name.removesuffix(".gz").removesuffix(".zst")
    name = clean_name(place.name if place.is_dir() else Path(packed).stem)
    return name if is_plain_text(name) else json.dumps(name)


def _describe(summary: DataSummary) -> str:
    files = f"{summary.files} file{'s' if summary.files > 1 else ''}"
    return f"{files} ({', '.join(summary.formats)}), about {_human(summary.bytes)}B, {_human(summary.tokens)} tokens"


def _round(number: int) -> int:
    """To two digits: an estimate should not look like a measurement."""
    return round(number, 2 - len(str(number))) if number >= 100 else number


def _human(number: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"
