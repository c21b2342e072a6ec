"""The state of a stream: its header, written once, and its journal, with a line for each complete shard."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from stoker.data.files import DataFile
from stoker.data.shards import VERSION, Dtype, Index, Shard, UnreadableSet
from stoker.rundir import append_line, write_atomic
from stoker.rundir.files import lines_forward
from stoker.rundir.records import RECORD_BYTES, parse_line, typed, typed_value
from stoker.spec.bounded import parse_json
from stoker.spec.data import Data
from stoker.spec.errors import UserError
from stoker.spec.files import open_regular, read_regular

HEADER_FILE = "stream.json"
JOURNAL_FILE = "journal.jsonl"
ERROR_FILE = "error.json"
MAX_HEADER_BYTES = 256 << 20  # it lists every file of the data

At = tuple[int, int]  # a file of the data, and a span of it


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    key: str
    data: Data
    files: list[DataFile]
    skipped: int
    """Files that could not be read."""
    dtype: Dtype
    vocab: int
    end: int
    tokenizer: str
    trained: int | None
    version: int = VERSION

    def write(self, folder: Path) -> None:
        record = {name: getattr(self, name) for name in self.__slots__}
        record |= {"data": self.data.model_dump(mode="json"), "files": [asdict(file) for file in self.files]}
        write_atomic(folder / HEADER_FILE, json.dumps(record, default=str))

    @classmethod
    def read(cls, folder: Path) -> Self:
        try:
            record: dict[str, Any] = parse_json(
                read_regular(folder / HEADER_FILE, max_bytes=MAX_HEADER_BYTES, follow_links=False),
                max_bytes=MAX_HEADER_BYTES,
            )
            files = [DataFile(**file | {"path": Path(file["path"])}) for file in record["files"]]
            return cls(**record | {"data": Data.model_validate(record["data"]), "files": files})
        except (OSError, ValueError, TypeError, KeyError) as e:
            raise UnreadableSet(
                f"{folder / HEADER_FILE} is missing or damaged", remedy="Delete the folder and start the run again"
            ) from e


@dataclass(frozen=True, kw_only=True, slots=True)
class JournalEntry:
    """A unit of the data whose shards are complete."""

    train: Shard
    validation: Shard
    documents: int
    bytes: int
    skipped: int
    then: At
    """Where the next unit starts."""


@dataclass(slots=True)
class Journal:
    """Read while it grows, by any number of processes; written by the process that holds the folder's lock."""

    folder: Path
    entries: list[JournalEntry] = field(default_factory=list)
    ended: bool = False
    tokens: int = 0
    """Training tokens so far."""
    _read: int = 0

    def refresh(self) -> None:
        """Reads new lines; a line that was cut off by a kill is skipped."""
        try:
            with open_regular(self.folder / JOURNAL_FILE, follow_links=False) as file:
                file.seek(self._read)
                lines = [line for line in lines_forward(file, max_bytes=RECORD_BYTES) if line.endswith(b"\n")]
        except FileNotFoundError:
            return
        for line in lines:
            self._read += len(line)
            try:
                record = parse_line(line)
                self.ended = self.ended or record.get("ended") is True
                if "ended" not in record:
                    self.entries.append(typed_value(JournalEntry, record))
                    self.tokens += self.entries[-1].train.tokens
            except ValueError:
                continue

    @property
    def at(self) -> At:
        return self.entries[-1].then if self.entries else (0, 0)

    def add(self, entry: JournalEntry) -> None:
        """Adds a line for shards that are on disk, and syncs it."""
        self._append(asdict(entry))

    def end(self) -> None:
        self._append({"ended": True})

    def _append(self, record: dict[str, Any]) -> None:
        append_line(self.folder / JOURNAL_FILE, record)
        descriptor = os.open(self.folder / JOURNAL_FILE, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self.refresh()


def index_of(header: Header, journal: Journal) -> Index:
    """The index of the shards in the journal."""
    entries = journal.entries
    return Index(
        key=header.key,
        dtype=header.dtype,
        vocab=header.vocab,
        end=header.end,
        tokenizer=header.tokenizer,
        trained=header.trained,
        documents=sum(entry.documents for entry in entries),
        bytes=sum(entry.bytes for entry in entries),
        skipped=header.skipped + sum(entry.skipped for entry in entries),
        train=[entry.train for entry in entries if entry.train.tokens],
        validation=[entry.validation for entry in entries if entry.validation.tokens],
        window=header.data.window,
    )


def write_error(folder: Path, problem: str, remedy: str) -> None:
    write_atomic(folder / ERROR_FILE, json.dumps({"problem": problem, "remedy": remedy}))


def read_error(folder: Path) -> UserError | None:
    try:
        error = typed(dict[str, str], read_regular(folder / ERROR_FILE, max_bytes=RECORD_BYTES, follow_links=False))
        return UserError(error["problem"], remedy=error["remedy"])
    except (OSError, ValueError, KeyError):
        return None


def clear_error(folder: Path) -> None:
    (folder / ERROR_FILE).unlink(missing_ok=True)
