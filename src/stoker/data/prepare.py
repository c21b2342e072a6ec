"""Text into a token set or a set of sentence pairs, in parallel, so that it can be killed at any moment and goes on.

files -> fingerprint -> key -> tokenizer -> units, each into a shard of its own -> index.json, last
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

from stoker.data import hdf5, own, pairing, pool
from stoker.data.bringing import brought
from stoker.data.claims import claim, lock, writing
from stoker.data.encode import UNITS_FOLDER, Advance, Job, encode, read_record, record_path
from stoker.data.files import DataFile, discover, fingerprint
from stoker.data.pairs import AnySet, Pairs, open_plain
from stoker.data.provenance import PROVENANCE_FOLDER
from stoker.data.records import PairJob, pair_index
from stoker.data.remote import FETCHED_FOLDER, fetch_all, find, identity, is_remote, kept_in
from stoker.data.shards import INDEX_FILE, TOKENIZER_FOLDER, VERSION, Index
from stoker.data.sources import format_of
from stoker.data.sources.document import BadRecords
from stoker.data.tokenizer import TOKENIZER_FILE, LoadedTokenizer, load, load_folder, made_in, to_train_with
from stoker.data.units import Unit, pieces, plan, whole
from stoker.data.wordpiece import words_of
from stoker.rundir import write_atomic
from stoker.spec.data import Data, TrainTokenizer
from stoker.spec.errors import UserError

PARALLELISM = "TOKENIZERS_PARALLELISM"  # whether the tokenizers library uses threads of its own
PLAN_FILE = "plan.json"
HASHES_FILE = ".hashes.json"
DEFAULT_TOKENIZER = TrainTokenizer(train=8000)
TRAINING_TEXT = 32 << 20  # characters a tokenizer is trained on: more changes it little and costs memory and minutes
SMALL = 4 << 20  # bytes that are tokenised before other processes would have started


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    phase: Literal["collecting", "reading", "waiting", "tokenizer", "tokens"]
    done: int
    """Bytes of the data."""
    total: int
    """Not known, and 0, while a function of the user's own still yields texts."""
    tokens: int = 0
    fetched: int = 0
    """Bytes that came from elsewhere."""


def ignore(_: Progress) -> None:
    """For callers that show no progress."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """What a prepare will work on, known before it starts."""

    key: str
    files: list[DataFile]
    unreadable: int
    tokenizer: LoadedTokenizer | TrainTokenizer | None
    """None for HDF5 files that come without."""
    pairs: Pairs | None
    masks: int | None
    """Masked places in a record of HDF5 files; None for text."""

    @property
    def trained(self) -> int | None:
        return self.tokenizer.train if isinstance(self.tokenizer, TrainTokenizer) else None


def prepare(
    data: Data,
    out: Path,
    *,
    pairs: Pairs | None = None,
    workers: int | None = None,
    progress: Callable[[Progress], None] = ignore,
) -> AnySet:
    """Make a set of tokens, or of pairs, in the folder `out`, or go on with one that was interrupted there."""
    if is_prepared(data):
        raise UserError(f"{data.path} is a prepared token set already", remedy="Train on it as it is")
    functions = own.functions(data)
    with writing(out):
        claim(out)
        data = own.written_down(data, functions, out, progress=collecting(progress))
        survey = survey_of(data, pairs, cache=out / HASHES_FILE, workers=workers, progress=progress)
        return _build(data, survey, out, workers=workers, progress=progress)


def prepared(
    data: Data,
    store: Path,
    *,
    pairs: Pairs | None = None,
    workers: int | None = None,
    progress: Callable[[Progress], None] = ignore,
    fetched: Path | None = None,
) -> AnySet:
    """The set of `data`: itself if it is one, else the one in the store, made or finished now if need be.

    `fetched` is where files from elsewhere may lie already.
    """
    if is_prepared(data) and (made := _folder(data)):
        return _open_as_asked(data, made)
    functions = own.functions(data)
    with writing(store):
        store.mkdir(parents=True, exist_ok=True)
        data = own.written_down(data, functions, store, progress=collecting(progress))
        survey = survey_of(data, pairs, cache=store / HASHES_FILE, workers=workers, progress=progress)
        folder = store / survey.key
        folder.mkdir(exist_ok=True)
        return _build(data, survey, folder, workers=workers, progress=progress, fetched=fetched)


def collecting(progress: Callable[[Progress], None]) -> Callable[[int], None]:
    return lambda done: progress(Progress(phase="collecting", done=done, total=0))


def is_prepared(data: Data) -> bool:
    folder = _folder(data)
    return folder is not None and (folder / INDEX_FILE).is_file()


def _folder(data: Data) -> Path | None:
    """The one place that the data is in, if it is one."""
    return Path(data.paths[0]) if len(data.paths) == 1 else None


def _open_as_asked(data: Data, folder: Path) -> AnySet:
    tokens = open_plain(folder)
    if data.tokenizer is None:
        return tokens
    if isinstance(data.tokenizer, TrainTokenizer):
        same = tokens.index.trained == data.tokenizer.train
    elif not tokens.index.tokenizer:
        same = False
    else:
        ours = load_folder(tokens.tokenizer).tokenizer
        same = to_train_with(load(data.tokenizer)).tokenizer.to_str() == ours.to_str()
    if not same:
        raise UserError(
            f"data.tokenizer is not the tokenizer that {folder} was prepared with",
            remedy="Leave data.tokenizer out, or name the text in data.path and prepare it again",
        )
    return tokens


def survey_of(
    data: Data,
    pairs: Pairs | None = None,
    *,
    cache: Path,
    workers: int | None,
    progress: Callable[[Progress], None],
) -> Survey:
    once: dict[str, DataFile] = {}
    here: list[tuple[Path, str]] = []
    binary = False
    for elsewhere, group in groupby(data.paths, is_remote):
        words = list(group)
        if elsewhere:
            some = [file for word in words for file in find(word)]
        else:
            found = discover(words)
            if any(format_of(path) == hdf5.FORMAT for path, _ in found):
                binary, found = True, hdf5.wanted(found, words)
            here += found
            some = fingerprint(
                found,
                cache=cache,
                threads=processes_of(workers),
                progress=lambda done, total: progress(Progress(phase="reading", done=done, total=total)),
            )
        for file in some:
            once.setdefault(file.url or str(file.path), file)  # two words may mean the same file
    files = list(once.values())
    tokenizer = _wanted_tokenizer(data, pairs, here, binary=binary)
    bad = BadRecords(skip=data.skip_bad)
    for file in files:
        if file.problem:
            bad.add(str(file.path), file.problem, remedy="Convert it to UTF-8 text or take it out")
    readable = [file for file in files if not file.problem]
    masks = hdf5.shape(readable, length=pairs.length) if binary and pairs else None
    by = f"train {tokenizer.train}" if isinstance(tokenizer, TrainTokenizer) else getattr(tokenizer, "sha256", "")
    content = [identity(file) for file in files]
    parts = [VERSION, by, data.field, data.validation, data.skip_bad, content]
    if pairs:
        parts += ["pairs", pairs.length, None if tokenizer else pairs.vocab]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
    return Survey(key=key, files=readable, unreadable=bad.skipped, tokenizer=tokenizer, pairs=pairs, masks=masks)


def _wanted_tokenizer(
    data: Data, pairs: Pairs | None, found: list[tuple[Path, str]], *, binary: bool
) -> LoadedTokenizer | TrainTokenizer | None:
    wanted = data.tokenizer or (None if binary else DEFAULT_TOKENIZER)
    tokenizer = load(wanted) if isinstance(wanted, str) else wanted
    if binary:
        hdf5.check(found, pairs, tokenizer)
    elif pairs and isinstance(tokenizer, LoadedTokenizer):
        words_of(tokenizer.tokenizer, wanted)
    return tokenizer


def _build(
    data: Data,
    survey: Survey,
    folder: Path,
    *,
    workers: int | None,
    progress: Callable[[Progress], None],
    fetched: Path | None = None,
) -> AnySet:
    with lock(folder, lambda: progress(Progress(phase="waiting", done=0, total=0))):
        if (folder / INDEX_FILE).is_file():
            return _reuse(folder, survey.key)
        _begin(folder, survey.key)
        files = [kept_in(file, fetched or folder) for file in survey.files]
        units = plan(files) if survey.masks is None else whole(files)
        tokenizer = _tokenizer(data, survey, units, folder, progress)
        vocab = tokenizer.vocab if tokenizer else survey.pairs.vocab if survey.pairs else None
        assert vocab is not None
        job = Job(
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
            _tokenise(job, work, units, workers=processes_of(workers), progress=progress)
            index = pair_index(pair_job, units, key=survey.key, vocab=vocab, trained=survey.trained)
            skipped = survey.unreadable + index.skipped
            replace(index, tokenizer=_hash_of_tokenizer(folder), skipped=skipped).write(folder)
        else:
            _tokenise(job, partial(encode, job), units, workers=processes_of(workers), progress=progress)
            _write_index(job, survey, units, vocab)
        _tidy(folder)
        return open_plain(folder)


def _reuse(folder: Path, key: str) -> AnySet:
    tokens = open_plain(folder)
    if tokens.key != key:
        raise UserError(
            f"{folder} holds a token set of other data, or of other settings",
            remedy="Choose another folder, or delete this one",
        )
    return tokens


def _begin(folder: Path, key: str) -> None:
    """Keep what an interrupted prepare of the same data has left; clear away anything else of ours."""
    plan_file = folder / PLAN_FILE
    begun = json.loads(plan_file.read_text())["key"] if plan_file.is_file() else None
    if begun:
        for path in folder.glob("*.part"):
            path.unlink()
    if begun and begun != key:
        for path in folder.glob("*.bin"):
            path.unlink()
        for name in (UNITS_FOLDER, PROVENANCE_FOLDER, TOKENIZER_FOLDER, FETCHED_FOLDER):
            shutil.rmtree(folder / name, ignore_errors=True)
    write_atomic(plan_file, json.dumps({"key": key}))
    for name in (UNITS_FOLDER, PROVENANCE_FOLDER):
        (folder / name).mkdir(exist_ok=True)


def _tokenizer(
    data: Data, survey: Survey, units: list[Unit], folder: Path, progress: Callable[[Progress], None]
) -> LoadedTokenizer | None:
    if survey.tokenizer is None:
        return None
    # Of what comes from elsewhere the first files: the others are not fetched twice, nor all kept here.
    here = not any(file.url for file in survey.files)
    texts = training_text(units, data, TRAINING_TEXT, progress, spread=here)
    return made_in(folder / TOKENIZER_FOLDER, survey.tokenizer, texts, pairs=survey.pairs is not None)


def training_text(
    units: list[Unit], data: Data, most: int, progress: Callable[[Progress], None], *, spread: bool
) -> Iterator[str]:
    """The beginning of every unit, or of all of them: the same each time, and no more than is needed."""
    total, done = sum(unit.size for unit in units), 0
    left = most
    for unit in units:
        left = most // len(units) if spread else left
        if left <= 0:
            break
        for arrived in fetch_all(file for file, _ in unit.parts):
            done += arrived
            progress(Progress(phase="tokenizer", done=done, total=0))
        for _, piece in pieces(unit, data.field, BadRecords(skip=data.skip_bad)):
            yield piece.text[:left]
            left -= len(piece.text)
            if left <= 0:
                break
        if spread:
            done += unit.size
            progress(Progress(phase="tokenizer", done=done, total=total))


def _tokenise(
    job: Job,
    work: Callable[[Unit], Iterator[Advance]],
    units: list[Unit],
    *,
    workers: int,
    progress: Callable[[Progress], None],
) -> None:
    work = partial(brought, job.folder, work)
    missing = [unit for unit in units if not record_path(job.folder, unit).is_file()]
    total, left = sum(unit.size for unit in units), sum(unit.size for unit in missing)
    done, tokens, fetched = total - left, 0, 0
    if workers == 1 or left < SMALL:
        advances = _in_this_process(work, missing)
    else:
        threads = max(1, workers // len(missing))  # a file that cannot be split has the cores to itself
        environment = {PARALLELISM: "true" if threads > 1 else "false", "RAYON_NUM_THREADS": str(threads)}
        advances = pool.run(work, missing, processes=workers, environment=environment)
    with closing(advances):
        for advance in advances:
            done, tokens, fetched = done + advance.bytes, tokens + advance.tokens, fetched + advance.fetched
            progress(Progress(phase="tokens", done=done, total=total, tokens=tokens, fetched=fetched))


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


def _write_index(job: Job, survey: Survey, units: list[Unit], vocab: int) -> None:
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
    return workers or len(os.sched_getaffinity(0))
