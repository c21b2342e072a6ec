"""Writes the shards of a stream in the order of its data. A kill at any moment leaves a shard done or not started."""

import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from stoker.data.any_set import require_tokens
from stoker.data.encode import UNITS_FOLDER, Advance, EncodeJob, encode, read_record, record_path
from stoker.data.output_folder import lock, writing
from stoker.data.prepare import (
    HASHES_FILE,
    TRAINING_CHARACTERS,
    DataSurvey,
    PrepareProgress,
    ignore,
    is_prepared,
    prepared,
    survey_of,
    training_text,
)
from stoker.data.provenance import PROVENANCE_FOLDER
from stoker.data.remote import FETCHED_FOLDER, fetch, forget, kept_in, problem_of
from stoker.data.shards import INDEX_FILE, TOKENIZER_FOLDER, TokenSet
from stoker.data.sources import source_of
from stoker.data.sources.document import Span
from stoker.data.stream.journal import At, Header, Journal, JournalEntry, clear_error, index_of
from stoker.data.stream.reader import StreamSet
from stoker.data.tokenizer import TOKENIZER_FILE, made_in
from stoker.data.work_units import Unit, one_per_file
from stoker.spec.data import Data
from stoker.spec.errors import UserError

MAX_UNIT_BYTES, MIN_UNIT_BYTES = 8 << 20, 4 << 10  # otherwise a unit is about a quarter of a window
CHARACTERS_PER_TOKEN = 4  # about


def streamed(
    data: Data, store: Path, *, workers: int | None = None, progress: Callable[[PrepareProgress], None] = ignore
) -> TokenSet:
    """The token set of `data` with its first window; the feeder of the run prepares the rest."""
    if is_prepared(data):
        return require_tokens(prepared(data, store))
    with writing(store):
        store.mkdir(parents=True, exist_ok=True)
        survey = survey_of(data, cache=store / HASHES_FILE, workers=workers, progress=progress)
        key = hashlib.sha256(f"stream {data.window} {survey.key}".encode()).hexdigest()[:32]
        folder = store / key
        folder.mkdir(exist_ok=True)
        if not (folder / INDEX_FILE).is_file():
            with lock(folder, lambda: progress(PrepareProgress(phase="waiting", done=0, total=0))):
                _lay_out(data, survey, key, folder, progress)
            feed(folder, tokens=data.window + 1, progress=progress)
    return TokenSet.open(folder) if (folder / INDEX_FILE).is_file() else StreamSet.open(folder)


def feed(folder: Path, *, tokens: int, progress: Callable[[PrepareProgress], None]) -> None:
    """Writes shards until they have this many tokens, or until the end of the data."""
    maker = StreamWriter(folder)
    done = made = fetched = 0
    while not maker.has(tokens):
        with lock(folder, ignore_busy):
            for advance in maker.step():
                done, made, fetched = done + advance.bytes, made + advance.tokens, fetched + advance.fetched
                progress(PrepareProgress(phase="tokens", done=done, total=0, tokens=made, fetched=fetched))


def ignore_busy() -> None:
    """For callers that wait for the folder's lock without a message."""


class StreamWriter:
    """Writes the shards of a folder, one step at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.header, self.journal = folder, Header.read(folder), Journal(folder)
        self._files = [kept_in(file, folder) for file in self.header.files]
        self._spans = lru_cache(2)(self._find_spans)
        data, window = self.header.data, self.header.data.window
        self._target = min(MAX_UNIT_BYTES, max(MIN_UNIT_BYTES, window))
        self._job = EncodeJob(
            folder=folder,
            field=data.field,
            validation=data.validation,
            skip_bad=data.skip_bad,
            end=self.header.end,
            dtype=self.header.dtype,
        )

    def has(self, tokens: int) -> bool:
        self.journal.refresh()
        return self.ended or self.journal.tokens >= tokens

    @property
    def ended(self) -> bool:
        return self.journal.ended and (self.folder / INDEX_FILE).is_file()

    def step(self) -> Iterator[Advance]:
        """Writes the next shard. The caller holds the folder's lock."""
        self.journal.refresh()
        start, position = self.journal.at, self.journal.at
        parts, size = [], 0
        while size < self._target and position[0] < len(self._files) and not self.journal.ended:
            file, number = self._files[position[0]], position[1]
            yield from (Advance(0, 0, fetched=arrived) for arrived in fetch(file))
            spans = self._spans(position[0])
            if number < len(spans):
                parts.append((file, spans[number]))
                size += spans[number].size
            position = (position[0], number + 1) if number + 1 < len(spans) else (position[0] + 1, 0)
        if parts:
            yield from self._make(Unit(number=len(self.journal.entries), parts=parts), position)
        for file in self._files[start[0] : position[0]]:
            forget(file)
        if position[0] == len(self._files):
            self._finish()

    def _make(self, unit: Unit, next_start: At) -> Iterator[Advance]:
        first = self.journal.tokens < self.header.data.window
        yield from encode(self._job if first else replace(self._job, validation=0.0), unit)
        record = read_record(self.folder, unit)
        self.journal.add(
            JournalEntry(
                train=record.train,
                validation=record.validation,
                documents=record.documents,
                bytes=record.bytes,
                skipped=record.skipped,
                then=next_start,
            )
        )
        record_path(self.folder, unit).unlink()

    def _find_spans(self, number: int) -> list[Span]:
        file = self._files[number]
        if problem_of(file):
            return [Span(size=file.size)]  # it is reported, or skipped, when it is read
        return source_of(file.format).spans(file.path, file.size, self._target)

    def _finish(self) -> None:
        if not self.journal.tokens:
            raise UserError("the data has no text", remedy="Check data.path and data.field")
        if not self.journal.ended:
            self.journal.end()
        index_of(self.header, self.journal).write(self.folder)
        for name in (UNITS_FOLDER, FETCHED_FOLDER):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        _clear_parts(self.folder)


def _lay_out(
    data: Data, survey: DataSurvey, key: str, folder: Path, progress: Callable[[PrepareProgress], None]
) -> None:
    """Writes the tokenizer and the header; the header each time, because files may have moved."""
    if (folder / INDEX_FILE).is_file():
        return
    for name in (UNITS_FOLDER, PROVENANCE_FOLDER):
        (folder / name).mkdir(exist_ok=True)
    _clear_parts(folder)
    clear_error(folder)
    assert survey.tokenizer is not None, "a stream is of text"
    units = one_per_file([kept_in(file, folder) for file in survey.files])
    characters = min(TRAINING_CHARACTERS, CHARACTERS_PER_TOKEN * data.window)
    texts = training_text(units, data, characters, progress, spread=False)
    home = folder / TOKENIZER_FOLDER
    made = made_in(home, survey.tokenizer, texts)
    header = Header(
        key=key,
        data=data,
        files=survey.files,
        skipped=survey.unreadable,
        dtype="uint16" if made.vocab <= 1 << 16 else "uint32",
        vocab=made.vocab,
        end=made.end_id,
        tokenizer=hashlib.sha256((home / TOKENIZER_FILE).read_bytes()).hexdigest(),
        trained=survey.trained,
    )
    header.write(folder)


def _clear_parts(folder: Path) -> None:
    """Deletes the partial shards of killed feeders."""
    for path in folder.glob("*.part"):
        path.unlink()
