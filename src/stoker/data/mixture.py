"""A mixture of token sets by weight: a folder with their tokenizer, and mix.json with their locations."""

import hashlib
import json
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from stoker.data import text_function
from stoker.data.any_set import open_prepared, require_tokens
from stoker.data.integrity import SetFile
from stoker.data.mix_file import MIX_FILE, read_mix
from stoker.data.order import Mixed, Order, shares
from stoker.data.output_folder import lock, writing
from stoker.data.prepare import (
    DEFAULT_TOKENIZER,
    HASHES_FILE,
    TRAINING_CHARACTERS,
    DataSurvey,
    PrepareProgress,
    collecting,
    ignore,
    is_prepared,
    prepared,
    survey_of,
    training_text,
)
from stoker.data.remote import kept_in
from stoker.data.shards import TOKENIZER_FOLDER, VERSION, Index, Split, TokenSet, UnreadableSet
from stoker.data.tokenizer import LoadedTokenizer, load, made_in
from stoker.data.work_units import plan
from stoker.rundir import write_json
from stoker.spec.data import Data, TrainTokenizer
from stoker.spec.errors import UserError


class MixtureSource(NamedTuple):
    name: str
    """The path in data.mix."""
    weight: float
    tokens: TokenSet


class MixedSplit(Split):
    """The splits of several sets; samples are numbered set after set."""

    def __init__(self, splits: list[Split], weights: tuple[float, ...]) -> None:
        self.window = None
        self._splits, self._weights = splits, weights
        self.tokens = sum(split.tokens for split in splits)

    def files(self) -> list[SetFile]:
        return [file for split in self._splits for file in split.files()]

    def check_when_read(self) -> None:
        for split in self._splits:
            split.check_when_read()

    def counts(self, length: int) -> list[int]:
        """Number of samples of each set."""
        return [split.samples(length) for split in self._splits]

    def samples(self, length: int) -> int:
        return sum(self.counts(length))

    def order(self, seed: int, length: int) -> Order:
        return Mixed(seed, self._weights, tuple(self.counts(length)))

    def read(self, ids: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        rows = np.empty((len(ids), self.width(length)), np.int64)
        first = 0
        for split, count in zip(self._splits, self.counts(length), strict=True):
            in_split = (ids >= first) & (ids < first + count)
            rows[in_split] = split.read(ids[in_split] - first, length)
            first += count
        if len(ids) and not 0 <= ids.min() <= ids.max() < first:
            raise IndexError(f"sample ids go from {ids.min()} to {ids.max()}, and there are {first}")
        return rows

    def tail(self, length: int) -> NDArray[np.int64] | None:  # noqa: ARG002 (each set has its own)
        return None


class Mixture(TokenSet):
    train: MixedSplit

    def __init__(self, path: Path, key: str, sources: list[MixtureSource]) -> None:
        sets, weights = [source.tokens for source in sources], tuple(source.weight for source in sources)
        super().__init__(path, _summed(key, [tokens.index for tokens in sets]))
        self.sources = sources
        self.train = MixedSplit([tokens.train for tokens in sets], weights)
        self.validation = MixedSplit([tokens.validation for tokens in sets], weights)

    @classmethod
    def open(cls, path: Path) -> Self:
        mix = read_mix(path)
        sources = []
        for source in mix.sources:
            tokens = TokenSet.open(path / source.folder)
            if tokens.key != source.key:
                raise UnreadableSet(
                    f"{tokens.path} has other data than the mixture was made of", remedy="Restore it, or use --new"
                )
            sources.append(MixtureSource(source.name, source.weight, tokens))
        return cls(path, mix.key, sources)

    def source_of(self, sample: int, length: int) -> tuple[MixtureSource, int]:
        """The source of a sample, and the sample's number in it."""
        firsts = list(accumulate(self.train.counts(length), initial=0))
        number = bisect_right(firsts, sample) - 1
        return self.sources[number], sample - firsts[number]


@dataclass(frozen=True, kw_only=True, slots=True)
class _MixedPart:
    name: str
    weight: float
    data: Data
    survey: DataSurvey | None
    """None for a part that is a token set already."""
    key: str


def mixed(
    data: Data, store: Path, *, workers: int | None = None, progress: Callable[[PrepareProgress], None] = ignore
) -> Mixture:
    """Prepares each part as a token set in the store, all with the same tokenizer."""
    with writing(store):
        store.mkdir(parents=True, exist_ok=True)
        data = data.model_copy(update={"tokenizer": data.tokenizer or _tokenizer_of_prepared(data)})
        parts = list(_parts(data, store, workers, progress))
        counts = shares([part.weight for part in parts])
        identity = [VERSION, [[part.key, count] for part, count in zip(parts, counts, strict=True)]]
        key = hashlib.sha256(f"mix {json.dumps(identity)}".encode()).hexdigest()[:32]
        folder = store / key
        folder.mkdir(exist_ok=True)
        with lock(folder, lambda: progress(PrepareProgress(phase="waiting", done=0, total=0))):
            home = folder / TOKENIZER_FOLDER
            made_in(home, _wanted_tokenizer(data, parts), _training_text(parts, folder, progress))
            sources = []
            for part in parts:
                same = part.data.model_copy(update={"tokenizer": str(home)})
                tokens = prepared(same, store, workers=workers, progress=progress, fetched=folder)
                sources.append(MixtureSource(part.name, part.weight, require_tokens(tokens)))
            _write(folder, key, sources)
    return Mixture.open(folder)


def _parts(
    data: Data, store: Path, workers: int | None, progress: Callable[[PrepareProgress], None]
) -> Iterator[_MixedPart]:
    for part in data.mix or ():
        name = ", ".join(part.paths)
        part_data = data.model_copy(update={"mix": None, "path": part.path, "field": part.field or data.field})
        if is_prepared(part_data):
            made = require_tokens(open_prepared(Path(name)))
            yield _MixedPart(name=name, weight=part.weight, data=part_data, survey=None, key=made.key)
            continue
        part_data = text_function.written_to_files(
            part_data, text_function.functions(part_data), store, progress=collecting(progress)
        )
        survey = survey_of(part_data, cache=store / HASHES_FILE, workers=workers, progress=progress)
        yield _MixedPart(name=name, weight=part.weight, data=part_data, survey=survey, key=survey.key)


def _tokenizer_of_prepared(data: Data) -> str | TrainTokenizer:
    """If data.tokenizer is not set: the tokenizer of the prepared parts."""
    for part in data.mix or ():
        if is_prepared(data.model_copy(update={"mix": None, "path": part.path})):
            return str(Path(part.paths[0]) / TOKENIZER_FOLDER)
    return DEFAULT_TOKENIZER


def _wanted_tokenizer(data: Data, parts: list[_MixedPart]) -> LoadedTokenizer | TrainTokenizer:
    assert data.tokenizer is not None
    if isinstance(data.tokenizer, str):
        return load(data.tokenizer)
    made = next((part.data.paths[0] for part in parts if part.survey is None), None)
    if made is not None:
        raise UserError(
            f"{made} is prepared already, and has a tokenizer of its own",
            remedy="Leave data.tokenizer out, or give the text of every part",
        )
    return data.tokenizer


def _training_text(parts: list[_MixedPart], folder: Path, progress: Callable[[PrepareProgress], None]) -> Iterator[str]:
    for part in parts:
        assert part.survey is not None
        files = [kept_in(file, folder) for file in part.survey.files]
        local = not any(file.url for file in files)
        yield from training_text(plan(files), part.data, TRAINING_CHARACTERS // len(parts), progress, spread=local)


def _write(folder: Path, key: str, sources: list[MixtureSource]) -> None:
    """Locations are relative to this folder, so that a store can be moved."""
    records = [
        {
            "name": source.name,
            "weight": source.weight,
            "key": source.tokens.key,
            "folder": os.path.relpath(source.tokens.path.absolute(), folder.absolute()),
        }
        for source in sources
    ]
    write_json(folder / MIX_FILE, {"version": VERSION, "key": key, "sources": records})


def _summed(key: str, indexes: list[Index]) -> Index:
    first = indexes[0]
    return Index(
        key=key,
        dtype=first.dtype,
        vocab=first.vocab,
        end=first.end,
        tokenizer=first.tokenizer,
        trained=first.trained,
        documents=sum(index.documents for index in indexes),
        bytes=sum(index.bytes for index in indexes),
        skipped=sum(index.skipped for index in indexes),
    )
