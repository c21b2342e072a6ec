"""Text into HDF5 files of sentence pairs, their masks drawn once, so that other people's scripts can train on them.

pairs_training_00000.hdf5 …  pairs_test_00000.hdf5 …  tokenizer/tokenizer.json  tokenizer/vocab.txt
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np

from stoker.data import hdf5
from stoker.data.masking import Masking, draw, listed
from stoker.data.pairs import Fields, Numbers, Pairs, PairSet, PairShard, PairSplit, fields
from stoker.data.prepare import Progress, ignore, prepare
from stoker.data.shards import TOKENIZER_FOLDER
from stoker.data.tokenizer import load_folder
from stoker.data.wordpiece import VOCABULARY_FILE, Words, words_of
from stoker.rundir import write_atomic
from stoker.spec.data import Data
from stoker.spec.errors import UserError

UNMASKED = ".pairs"  # what is not finished goes on with it
MASKING_FILE = ".masking.json"


def export(
    data: Data,
    out: Path,
    pairs: Pairs,
    masking: Masking,
    *,
    workers: int | None = None,
    progress: Callable[[Progress], None] = ignore,
) -> PairSet:
    """Make the files in the folder `out`, or go on where it was interrupted. The set that comes back is unmasked."""
    if hdf5.are_hdf5(data.paths):
        raise UserError(f"{data.path} holds HDF5 files already", remedy="Name text")
    _claim(out, masking)
    made = prepare(data, out / UNMASKED, pairs=pairs, workers=workers, progress=progress)
    assert isinstance(made, PairSet)
    words = words_of(load_folder(made.tokenizer).tokenizer, made.tokenizer)
    for split, shards, kind in (
        (made.train, made.index.train, "training"),
        (made.validation, made.index.validation, "test"),
    ):
        _write(out, split, shards, kind, made.index.length, masking, words)
    shutil.copytree(made.tokenizer, out / TOKENIZER_FOLDER, dirs_exist_ok=True)
    _write_vocabulary(made, out / TOKENIZER_FOLDER)
    return made


def masked(rows: Numbers, ids: Numbers, length: int, masking: Masking, words: Words) -> Fields:
    """Records with their masks drawn, once and for good."""
    found = fields(rows, length)
    masks = draw(found, ids, np.zeros_like(ids), masking, words)
    positions, were = listed(masks.goals_NL, masking.predictions)
    return found._replace(tokens_NL=masks.tokens_NL, positions_NP=positions, ids_NP=were)


def _write(
    out: Path, split: PairSplit, shards: list[PairShard], kind: str, length: int, masking: Masking, words: Words
) -> None:
    first = 0
    for number, shard in enumerate(shards):
        ids = np.arange(first, first + shard.records)
        first += shard.records
        file = out / f"pairs_{kind}_{number:05d}.hdf5"
        if not file.is_file():
            hdf5.write(file, masked(split.read(ids, length), ids, length, masking, words))


def _write_vocabulary(made: PairSet, folder: Path) -> None:
    vocabulary = load_folder(made.tokenizer).tokenizer.get_vocab(with_added_tokens=True)
    tokens = {id: token for token, id in vocabulary.items()}
    lines = [tokens.get(id, f"[unused{id}]") for id in range(made.vocab)]
    (folder / VOCABULARY_FILE).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _claim(out: Path, masking: Masking) -> None:
    out.mkdir(parents=True, exist_ok=True)
    note, how = out / MASKING_FILE, json.dumps(asdict(masking))
    if any(out.iterdir()) and not note.is_file():
        raise UserError(f"{out} is not empty", remedy="Choose a folder that is empty or not there yet")
    if note.is_file() and note.read_text() != how:
        raise UserError(f"{out} was begun with other masks", remedy="Choose another folder, or delete this one")
    write_atomic(note, how)
