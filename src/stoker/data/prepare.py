"""Prepares text as a token set or a set of sentence pairs, in parallel. It may be killed at any moment and resumes.

files -> fingerprint -> key -> tokenizer -> units, each written to its own shard -> index.json, last
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Literal

from stoker.data import pool, text_function
from stoker.data.any_set import AnySet, open_prepared
from stoker.data.bert import hdf5, pairing
from stoker.data.bert.pairs import Pairs
from stoker.data.bert.records import PairJob, pair_index
from stoker.data.encode import UNITS_FOLDER, Advance, EncodeJob, encode, read_record, record_path, with_files
from stoker.data.files import DataFile, discover, fingerprint
from stoker.data.output_folder import claim, lock, writing
from stoker.data.provenance import PROVENANCE_FOLDER
from stoker.data.remote import FETCHED_FOLDER, fetch_all, find, identity, is_remote, kept_in
from stoker.data.shards import INDEX_FILE, TOKENIZER_FOLDER, VERSION, Index
from stoker.data.sources import format_of
from stoker.data.sources.document import BadRecords
from stoker.data.tokenizer import TOKENIZER_FILE, LoadedTokenizer, load, load_folder, made_in, to_train_with
from stoker.data.wordpiece import masking_vocabulary
from stoker.data.work_units import Unit, one_per_file, pieces, plan
from stoker.rundir import write_atomic
from stoker.spec.data import Data, TrainTokenizer
from stoker.spec.errors import UserError
from stoker.spec.host import usable_cores

PARALLELISM = "TOKENIZERS_PARALLELISM"  # whether the tokenizers library uses threads
PLAN_FILE = "plan.json"
HASHES_FILE = ".hashes.json"
DEFAULT_TOKENIZER = TrainTokenizer(train=8000)
# What a tokenizer is trained on: more text hardly changes it, and costs memory and minutes.
TRAINING_CHARACTERS = 32 << 20
SMALL_BYTES = 4 << 20  # tokenized before other processes would have started


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareProgress:
    phase: Literal["collecting", "reading", "waiting", "tokenizer", "tokens"]
    done: int
    """Bytes of the data."""
    total: int
    """0 while it is unknown, as for a user's function that still yields texts."""
    tokens: int = 0
    fetched: int = 0
    """Bytes downloaded."""


def ignore(_: PrepareProgress) -> None:
    """For callers that show no progress."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSurvey:
    """The files, tokenizer and key of a prepare, determined before it starts."""

    key: str
    files: list[DataFile]
    unreadable: int
    tokenizer: LoadedTokenizer | TrainTokenizer | None
    """None for HDF5 files without a tokenizer."""
    pairs: Pairs | None
    masks: int | None
    """Masked positions per record of HDF5 files; None for text."""

    @property
    def trained(self) -> int | None:
        return self.tokenizer.train if isinstance(self.tokenizer, TrainTokenizer) else None


def prepare(
    data: Data,
    out: Path,
    *,
    pairs: Pairs | None = None,
    workers: int | None = None,
    progress: Callable[[PrepareProgress], None] = ignore,
) -> AnySet:
    """Prepares a set of tokens or pairs in the folder `out`, or resumes an interrupted prepare."""
    if is_prepared(data):
        raise UserError(f"{data.path} is a prepared token set already", remedy="Train on it as it is")
    functions = text_function.functions(data)
    with writing(out):
        claim(out)
        data = text_function.written_to_files(data, functions, out, progress=collecting(progress))
        survey = survey_of(data, pairs, cache=out / HASHES_FILE, workers=workers, progress=progress)
        return _build(data, survey, out, workers=workers, progress=progress)


def prepared(
    data: Data,
    store: Path,
    *,
    pairs: Pairs | None = None,
    workers: int | None = None,
    progress: Callable[[PrepareProgress], None] = ignore,
    fetched: Path | None = None,
) -> AnySet:
    """The set of `data`: itself if it is prepared, else the set in the store, prepared or finished now if necessary.

    `fetched`: a folder that may have the remote files already.
    """
    if is_prepared(data) and (made := _folder(data)):
        return _open_checked(data, made)
    functions = text_function.functions(data)
    with writing(store):
        store.mkdir(parents=True, exist_ok=True)
        data = text_function.written_to_files(data, functions, store, progress=collecting(progress))
        survey = survey_of(data, pairs, cache=store / HASHES_FILE, workers=workers, progress=progress)
        folder = store / survey.key
        folder.mkdir(exist_ok=True)
        return _build(data, survey, folder, workers=workers, progress=progress, fetched=fetched)


def collecting(progress: Callable[[PrepareProgress], None]) -> Callable[[int], None]:
    return lambda done: progress(PrepareProgress(phase="collecting", done=done, total=0))


def is_prepared(data: Data) -> bool:
    folder = _folder(data)
    return folder is not None and (folder / INDEX_FILE).is_file()


def _folder(data: Data) -> Path | None:
    """The path of the data, if it is a single path."""
    return Path(data.paths[0]) if len(data.paths) == 1 else None


def _open_checked(data: Data, folder: Path) -> AnySet:
    tokens = open_prepared(folder)
    if data.tokenizer is None:
        return tokens
    if isinstance(data.tokenizer, TrainTokenizer):
        same = tokens.index.trained == data.tokenizer.train
    elif not tokens.index.tokenizer:
        same = False
    else:
        tokenizer = load_folder(tokens.tokenizer).tokenizer
        same = to_train_with(load(data.tokenizer)).tokenizer.to_str() == tokenizer.to_str()
    if not same:
        raise UserError(
            f"data.tokenizer is not the tokenizer that {folder} was prepared with",
            remedy="Leave data.tokenizer out, or set data.path to the text to prepare it again",
        )
    return tokens


def survey_of(
    data: Data,
    pairs: Pairs | None = None,
    *,
    cache: Path,
    workers: int | None,
    progress: Callable[[PrepareProgress], None],
) -> DataSurvey:
    unique: dict[str, DataFile] = {}
    local: list[tuple[Path, str]] = []
    binary = False
    for remote, group in groupby(data.paths, is_remote):
        locations = list(group)
        if remote:
            group_files = [file for location in locations for file in find(location)]
        else:
            discovered = discover(locations)
            if any(format_of(path) == hdf5.FORMAT for path, _ in discovered):
                binary, discovered = True, hdf5.training_files(discovered, locations)
            local += discovered
            group_files = fingerprint(
                discovered,
                cache=cache,
                threads=processes_of(workers),
                progress=lambda done, total: progress(PrepareProgress(phase="reading", done=done, total=total)),
            )
        for file in group_files:
            unique.setdefault(file.url or str(file.path), file)  # two entries may lead to the same file
    files = list(unique.values())
    tokenizer = _wanted_tokenizer(data, pairs, local, binary=binary)
    bad = BadRecords(skip=data.skip_bad)
    for file in files:
        if file.problem:
            bad.add(str(file.path), file.problem, remedy="Convert it to UTF-8 text, or remove it")
    readable = [file for file in files if not file.problem]
    masks = hdf5.shape(readable, length=pairs.length) if binary and pairs else None
    tokenizer_key = (
        f"train {tokenizer.train}" if isinstance(tokenizer, TrainTokenizer) else getattr(tokenizer, "sha256", "")
    )
    content = [identity(file) for file in files]
    parts = [VERSION, tokenizer_key, data.field, data.validation, data.skip_bad, content]
    if pairs:
        parts += ["pairs", pairs.length, None if tokenizer else pairs.vocab]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
    return DataSurvey(key=key, files=readable, unreadable=bad.skipped, tokenizer=tokenizer, pairs=pairs, masks=masks)


def _wanted_tokenizer(
    data: Data, pairs: Pairs | None, files: list[tuple[Path, str]], *, binary: bool
) -> LoadedTokenizer | TrainTokenizer | None:
    wanted = data.tokenizer or (None if binary else DEFAULT_TOKENIZER)
    tokenizer = load(wanted) if isinstance(wanted, str) else wanted
    if binary:
        hdf5.check(files, pairs, tokenizer)
    elif pairs and isinstance(tokenizer, LoadedTokenizer):
        masking_vocabulary(tokenizer.tokenizer, wanted)
    return tokenizer


def _build(
    data: Data,
    survey: DataSurvey,
    folder: Path,
    *,
    workers: int | None,
    progress: Callable[[PrepareProgress], None],
    fetched: Path | None = None,
) -> AnySet:
    with lock(folder, lambda: progress(PrepareProgress(phase="waiting", done=0, total=0))):
        if (folder / INDEX_FILE).is_file():
            return _reuse(folder, survey.key)
        _begin(folder, survey.key)
        files = [kept_in(file, fetched or folder) for file in survey.files]
        units = plan(files) if survey.masks is None else one_per_file(files)
        tokenizer = _tokenizer(data, survey, units, folder, progress)
        vocab = tokenizer.vocab if tokenizer else survey.pairs.vocab if survey.pairs else None
        assert vocab is not None
        job = EncodeJob(
            folder=folder,
            field=data.field,
            validation=data.validation,
            skip_bad=data.skip_bad,
            end=tokenizer.end_id if tokenizer else 0,
            dtype="uint16" if vocab <= 1 << 16 else "uint32",
        )
        if survey.pairs:
            pair_job = PairJob(**asdict(job), length=survey.pairs.length, predictions=survey.masks or 0)
            work = partial(pairing.encode, pair_job)
            if survey.masks is not None:
                work = partial(hdf5.convert, pair_job, vocab)
            _tokenize(job, work, units, workers=processes_of(workers), progress=progress)
            index = pair_index(pair_job, units, key=survey.key, vocab=vocab, trained=survey.trained)
            skipped = survey.unreadable + index.skipped
            replace(index, tokenizer=_hash_of_tokenizer(folder), skipped=skipped).write(folder)
        else:
            _tokenize(job, partial(encode, job), units, workers=processes_of(workers), progress=progress)
            _write_index(job, survey, units, vocab)
        _tidy(folder)
        return open_prepared(folder)


def _reuse(folder: Path, key: str) -> AnySet:
    tokens = open_prepared(folder)
    if tokens.key != key:
        raise UserError(
            f"{folder} has a token set of other data or settings",
            remedy="Choose another folder, or delete this one",
        )
    return tokens


def _begin(folder: Path, key: str) -> None:
    """Keeps the files of an interrupted prepare of the same data, and deletes those of other data."""
    plan_file = folder / PLAN_FILE
    started = json.loads(plan_file.read_text())["key"] if plan_file.is_file() else None
    if started:
        for path in folder.glob("*.part"):
            path.unlink()
    if started and started != key:
        for path in folder.glob("*.bin"):
            path.unlink()
        for name in (UNITS_FOLDER, PROVENANCE_FOLDER, TOKENIZER_FOLDER, FETCHED_FOLDER):
            shutil.rmtree(folder / name, ignore_errors=True)
    write_atomic(plan_file, json.dumps({"key": key}))
    for name in (UNITS_FOLDER, PROVENANCE_FOLDER):
        (folder / name).mkdir(exist_ok=True)


def _tokenizer(
    data: Data, survey: DataSurvey, units: list[Unit], folder: Path, progress: Callable[[PrepareProgress], None]
) -> LoadedTokenizer | None:
    if survey.tokenizer is None:
        return None
    # Of remote data, the first files only: the others are neither fetched twice nor all kept.
    local = not any(file.url for file in survey.files)
    texts = training_text(units, data, TRAINING_CHARACTERS, progress, spread=local)
    return made_in(folder / TOKENIZER_FOLDER, survey.tokenizer, texts, pairs=survey.pairs is not None)


def training_text(
    units: list[Unit], data: Data, most: int, progress: Callable[[PrepareProgress], None], *, spread: bool
) -> Iterator[str]:
    """The start of every unit, or of the whole data: the same each time, and no more than necessary."""
    total, done = sum(unit.size for unit in units), 0
    left = most
    for unit in units:
        left = most // len(units) if spread else left
        if left <= 0:
            break
        for size in fetch_all(file for file, _ in unit.parts):
            done += size
            progress(PrepareProgress(phase="tokenizer", done=done, total=0))
        for _, piece in pieces(unit, data.field, BadRecords(skip=data.skip_bad)):
            yield piece.text[:left]
            left -= len(piece.text)
            if left <= 0:
                break
        if spread:
            done += unit.size
            progress(PrepareProgress(phase="tokenizer", done=done, total=total))


def _tokenize(
    job: EncodeJob,
    work: Callable[[Unit], Iterator[Advance]],
    units: list[Unit],
    *,
    workers: int,
    progress: Callable[[PrepareProgress], None],
) -> None:
    work = partial(with_files, job.folder, work)
    missing = [unit for unit in units if not record_path(job.folder, unit).is_file()]
    total, left = sum(unit.size for unit in units), sum(unit.size for unit in missing)
    done, tokens, fetched = total - left, 0, 0
    if workers == 1 or left < SMALL_BYTES:
        advances = _in_this_process(work, missing)
    else:
        threads = max(1, workers // len(missing))  # a file that cannot be split gets all cores
        environment = {PARALLELISM: "true" if threads > 1 else "false", "RAYON_NUM_THREADS": str(threads)}
        advances = pool.run(work, missing, processes=workers, environment=environment)
    with closing(advances):
        for advance in advances:
            done, tokens, fetched = done + advance.bytes, tokens + advance.tokens, fetched + advance.fetched
            progress(PrepareProgress(phase="tokens", done=done, total=total, tokens=tokens, fetched=fetched))


def _in_this_process(work: Callable[[Unit], Iterator[Advance]], units: list[Unit]) -> Generator[Advance]:
    before = os.environ.get(PARALLELISM)
    os.environ[PARALLELISM] = "false"
    try:
        for unit in units:
            yield from work(unit)
    finally:
        if before is None:
            del os.environ[PARALLELISM]
        else:
            os.environ[PARALLELISM] = before


def _write_index(job: EncodeJob, survey: DataSurvey, units: list[Unit], vocab: int) -> None:
    records = [read_record(job.folder, unit) for unit in units]
    train, validation = [record.train for record in records], [record.validation for record in records]
    if not any(shard.tokens for shard in train):
        raise UserError("the data has no text", remedy="Check data.path and data.field")
    Index(
        key=survey.key,
        dtype=job.dtype,
        vocab=vocab,
        end=job.end,
        tokenizer=_hash_of_tokenizer(job.folder),
        trained=survey.trained,
        documents=sum(record.documents for record in records),
        bytes=sum(record.bytes for record in records),
        skipped=survey.unreadable + sum(record.skipped for record in records),
        train=[shard for shard in train if shard.tokens],
        validation=[shard for shard in validation if shard.tokens],
    ).write(job.folder)


def _hash_of_tokenizer(folder: Path) -> str:
    file = folder / TOKENIZER_FOLDER / TOKENIZER_FILE
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


def _tidy(folder: Path) -> None:
    shutil.rmtree(folder / UNITS_FOLDER)
    shutil.rmtree(folder / FETCHED_FOLDER, ignore_errors=True)
    (folder / PLAN_FILE).unlink()


def processes_of(workers: int | None) -> int:
    """The requested number, else the number of usable cores."""
    return workers or usable_cores()
