"""Sentence pairs in HDF5 files, as written and read by NVIDIA's and AWS Neuron's BERT scripts.

A file has six arrays of as many rows: the tokens with their masks drawn, which of them are real (ones, then zeros),
which are of the second sentence (zeros, ones, then zeros), the masked positions and their original words (the first
zero place ends the list), and whether the second sentence does not follow the first.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from stoker.data.bert.pairs import Fields, Numbers, Pairs, join
from stoker.data.bert.records import PairJob, records
from stoker.data.encode import Advance
from stoker.data.files import DataFile, discover
from stoker.data.remote import is_remote
from stoker.data.sources import format_of
from stoker.data.work_units import Unit
from stoker.spec import extras
from stoker.spec.data import TrainTokenizer
from stoker.spec.errors import UserError

FORMAT = "hdf5"
TRAINING = "*_training_*.hdf5"
KEYS = {
    "input_ids": "i4",
    "input_mask": "i1",
    "segment_ids": "i1",
    "masked_lm_positions": "i4",
    "masked_lm_ids": "i4",
    "next_sentence_labels": "i1",
}
TOKENS, MASK, SEGMENTS, POSITIONS, IDS, LABELS = KEYS
WIDE = (MASK, SEGMENTS)  # as long as the tokens
BATCH_ROWS = 1 << 14  # read at once
REMEDY = f"Give files that have {', '.join(KEYS)}, as create_pretraining_data.py writes them"


def training_files(files: Sequence[tuple[Path, str]], locations: str | Sequence[str]) -> list[tuple[Path, str]]:
    """Of folders, the training files only; files that are named directly are all kept."""
    folders = [
        Path(os.path.expanduser(location)) for location in ([locations] if isinstance(locations, str) else locations)
    ]
    inside = [folder.absolute() for folder in folders if folder.is_dir()]
    return [
        (path, name)
        for path, name in files
        if fnmatch(path.name, TRAINING) or not any(path.is_relative_to(folder) for folder in inside)
    ]


def are_hdf5(locations: str | Sequence[str]) -> bool:
    """Remote data is always text."""
    named = [locations] if isinstance(locations, str) else locations
    local = [location for location in named if not is_remote(location)]
    return bool(local) and any(format_of(path) == FORMAT for path, _ in discover(local))


def check(files: Sequence[tuple[Path, str]], pairs: Pairs | None, tokenizer: object) -> None:
    """The checks that need not read the files."""
    text = next((path for path, _ in files if format_of(path) != FORMAT), None)
    if not files or text:
        problem = f"{text} is no HDF5 file, and others are" if text else f"no file is called {TRAINING}"
        raise UserError(problem, remedy=f"Name only the HDF5 files in data.path, or a folder with {TRAINING}")
    path = files[0][0]
    if pairs is None:
        raise UserError(f"{path} holds sentence pairs for masked models", remedy="Set model: bert-base, or name text")
    if isinstance(tokenizer, TrainTokenizer):
        raise UserError(
            f"{path} holds tokens already, and none can be trained on them",
            remedy="Set data.tokenizer to the folder with the vocab.txt that they were made with",
        )
    if tokenizer is None and pairs.vocab is None:
        raise UserError(
            f"{path} does not say how large its vocabulary is",
            remedy="Set data.tokenizer to the folder with its vocab.txt, or model.vocab, such as 30522",
        )


def shape(files: Sequence[DataFile], *, length: int) -> int:
    """The masked positions per record; all files must have the same number, and sequences of `length`."""
    path_by_places: dict[int, Path] = {}
    for file in files:
        with _opened(file.path) as opened:
            width, places = opened[TOKENS].shape[1], opened[POSITIONS].shape[1]
        if places > width:
            raise UserError(
                f"{file.path} has {places} masked places in sequences of {width} tokens",
                remedy="Make or fetch the file again",
            )
        if width != length:
            raise UserError(
                f"{file.path} has sequences of {width} tokens, and {length} were asked for",
                remedy=f"Set batch.length (stoker prepare: --pairs, stoker eval: --length) to {width}",
            )
        path_by_places.setdefault(places, file.path)
    if len(path_by_places) > 1:
        (places, path), (other_places, other_path) = list(path_by_places.items())[:2]
        raise UserError(
            f"{path} has {places} masked positions per sequence, and {other_path} has {other_places}",
            remedy="Name files of one kind",
        )
    return next(iter(path_by_places))


def convert(job: PairJob, vocab: int, unit: Unit) -> Iterator[Advance]:
    ((file, span),) = unit.parts
    with records(job, unit) as out, _opened(file.path) as opened:
        total = len(opened[TOKENS])
        done = 0
        for start in range(0, total, BATCH_ROWS):
            stop = min(total, start + BATCH_ROWS)
            rows = _rows(file.path, {key: _read(file.path, opened, key, start, stop) for key in KEYS}, start, vocab)
            out.add(rows)
            after = span.size * stop // total
            yield Advance(after - done, int(rows[:, job.length].sum()))
            done = after
        out.finish(documents=0, bytes=0, skipped=0)
        yield Advance(span.size - done, 0)


def write(path: Path, rows: Fields) -> None:
    """Writes a file of records with fixed masks in the same format."""
    at_L = np.arange(rows.tokens_NL.shape[1])
    real_NL = at_L < rows.real_N[:, None]
    arrays = {
        TOKENS: rows.tokens_NL,
        MASK: real_NL,
        SEGMENTS: real_NL & (at_L >= rows.second_N[:, None]),
        POSITIONS: rows.positions_NP,
        IDS: rows.ids_NP,
        LABELS: rows.label_N,
    }
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with extras.load_extra("h5py").File(partial, "w", track_order=True) as file:
            for key, array in arrays.items():
                file.create_dataset(key, data=array.astype(KEYS[key]), compression="gzip")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _opened(path: Path) -> Any:
    """An open file whose arrays all exist and have the same length."""
    try:
        file = extras.load_extra("h5py").File(path, "r")
    except OSError as e:
        reason = str(e).splitlines()[0]
        raise UserError(f"{path} cannot be read as HDF5: {reason}", remedy="Make or fetch the file again") from e
    with ExitStack() as stack:
        stack.callback(file.close)
        _check_arrays(path, file)
        stack.pop_all()
    return file


def _check_arrays(path: Path, file: Any) -> None:
    for key in KEYS:
        if not isinstance(file.get(key), extras.load_extra("h5py").Dataset):
            raise UserError(f"{path} has no {key}", remedy=REMEDY)
        dimensions = (1, 2) if key == LABELS else (2,)
        if file[key].ndim not in dimensions or file[key].dtype.kind not in "iub":
            raise UserError(f"{path}: {key} is not a table of integers", remedy=REMEDY)
    rows = {key: len(file[key]) for key in KEYS}
    if len(set(rows.values())) > 1:
        lengths = ", ".join(f"{key} {number}" for key, number in rows.items())
        raise UserError(f"{path}: its arrays differ in length ({lengths})", remedy="Make or fetch the file again")
    if not rows[TOKENS]:
        raise UserError(f"{path} has no sequences", remedy="Remove it")
    for first, matching in ((TOKENS, WIDE), (POSITIONS, (IDS,))):
        for second in matching:
            if file[first].shape != file[second].shape:
                raise UserError(
                    f"{path}: {second} is {file[second].shape[1]} wide, and {first} {file[first].shape[1]}",
                    remedy="Make or fetch the file again",
                )


def _read(path: Path, file: Any, key: str, start: int, stop: int) -> Any:
    """Errors in a file show only when its parts are read."""
    try:
        return file[key][start:stop]
    except OSError as e:
        raise UserError(
            f"{path} is damaged: {key} cannot be read in rows {start} to {stop - 1}",
            remedy="Make or fetch the file again",
        ) from e


def _rows(path: Path, arrays: dict[str, Numbers], start: int, vocab: int) -> Numbers:
    """Records of rows start, start + 1 …; a bad row is reported with its number."""
    tokens, mask, segments, positions, ids = (
        arrays[key].astype(np.int64) for key in (TOKENS, MASK, SEGMENTS, POSITIONS, IDS)
    )
    label = arrays[LABELS].reshape(len(tokens), -1).astype(np.int64)[:, 0]
    at = np.arange(tokens.shape[1])
    real = mask.sum(axis=1)
    second = np.where(segments.any(axis=1), segments.argmax(axis=1), real)
    listed = np.cumprod(positions != 0, axis=1).astype(bool)
    positions, ids = positions * listed, ids * listed
    inside = at < real[:, None]
    faults = {
        f"{MASK} is not ones and then zeros": (mask != inside).any(axis=1) | (real < 1),
        f"{SEGMENTS} is not zeros, then ones up to the end": (segments != inside & (at >= second[:, None])).any(axis=1),
        f"{POSITIONS} has a place outside the sequence": ((positions < 0) | (positions >= real[:, None])).any(axis=1),
        f"{LABELS} is neither 0 nor 1": (label != 0) & (label != 1),
        f"a token is outside the vocabulary of {vocab}": _outside(tokens, vocab) | _outside(ids, vocab),
    }
    for problem, rows in faults.items():
        if rows.any():
            raise UserError(
                f"{path}, row {start + int(rows.argmax())}: {problem}", remedy="Make or fetch the file again"
            )
    return join(Fields(tokens * inside, real, second, label, positions, ids))


def _outside(ids: Numbers, vocab: int) -> Any:
    return ((ids < 0) | (ids >= vocab)).any(axis=1)
