"""Writes text as HDF5 files of sentence pairs with fixed masks, for other training scripts.

pairs_training_00000.hdf5 …  pairs_test_00000.hdf5 …  tokenizer/tokenizer.json  tokenizer/vocab.txt
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np

from stoker.data.bert import hdf5
from stoker.data.bert.masking import Masking, draw, listed
from stoker.data.bert.pairs import Fields, Numbers, Pairs, PairSet, PairShard, PairSplit, fields
from stoker.data.prepare import PrepareProgress, ignore, prepare
from stoker.data.shards import TOKENIZER_FOLDER
from stoker.data.tokenizer import load_folder
from stoker.data.wordpiece import VOCABULARY_FILE, MaskingVocabulary, masking_vocabulary
from stoker.rundir import write_atomic
from stoker.spec.data import Data
from stoker.spec.errors import UserError

UNMASKED = ".pairs"  # unmasked pairs; kept until all files are written
MASKING_FILE = ".masking.json"


def export(
    data: Data,
    out: Path,
    pairs: Pairs,
    masking: Masking,
    *,
    workers: int | None = None,
    progress: Callable[[PrepareProgress], None] = ignore,
) -> PairSet:
    """Writes the files to the folder `out`, or resumes an interrupted export. Returns the unmasked set."""
    if hdf5.are_hdf5(data.paths):
        raise UserError(f"{data.path} has HDF5 files already", remedy="Name text files")
    _claim(out, masking)
    made = prepare(data, out / UNMASKED, pairs=pairs, workers=workers, progress=progress)
    assert isinstance(made, PairSet)
    vocabulary = masking_vocabulary(load_folder(made.tokenizer).tokenizer, made.tokenizer)
    for split, shards, kind in (
        (made.train, made.index.train, "training"),
        (made.validation, made.index.validation, "test"),
    ):
        _write(out, split, shards, kind, made.index.length, masking, vocabulary)
    shutil.copytree(made.tokenizer, out / TOKENIZER_FOLDER, dirs_exist_ok=True)
    _write_vocabulary(made, out / TOKENIZER_FOLDER)
    return made


def masked(rows: Numbers, ids: Numbers, length: int, masking: Masking, vocabulary: MaskingVocabulary) -> Fields:
    """Records with fixed masks."""
    unmasked = fields(rows, length)
    masks = draw(unmasked, ids, np.zeros_like(ids), masking, vocabulary)
    positions, original_ids = listed(masks.goals_NL, masking.predictions)
    return unmasked._replace(tokens_NL=masks.tokens_NL, positions_NP=positions, ids_NP=original_ids)


def _write(
    out: Path,
    split: PairSplit,
    shards: list[PairShard],
    kind: str,
    length: int,
    masking: Masking,
    vocabulary: MaskingVocabulary,
) -> None:
    first = 0
    for number, shard in enumerate(shards):
        ids = np.arange(first, first + shard.records)
        first += shard.records
        file = out / f"pairs_{kind}_{number:05d}.hdf5"
        if not file.is_file():
            hdf5.write(file, masked(split.read(ids, length), ids, length, masking, vocabulary))


def _write_vocabulary(made: PairSet, folder: Path) -> None:
    vocabulary = load_folder(made.tokenizer).tokenizer.get_vocab(with_added_tokens=True)
    tokens = {id: token for token, id in vocabulary.items()}
    lines = [tokens.get(id, f"[unused{id}]") for id in range(made.vocab)]
    (folder / VOCABULARY_FILE).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _claim(out: Path, masking: Masking) -> None:
    out.mkdir(parents=True, exist_ok=True)
    note, settings = out / MASKING_FILE, json.dumps(asdict(masking))
    if any(out.iterdir()) and not note.is_file():
        raise UserError(f"{out} is not empty", remedy="Choose an empty or a new folder")
    if note.is_file() and note.read_text() != settings:
        raise UserError(f"{out} was started with other masks", remedy="Choose another folder, or delete this one")
    write_atomic(note, settings)
