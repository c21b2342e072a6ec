"""What is known of a stream: its header, written once, and its journal, which grows by a line for each whole shard."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from stoker.data.files import DataFile
from stoker.data.shards import VERSION, Dtype, Index, Shard
from stoker.rundir import append_line, write_atomic
from stoker.rundir.files import lines_forward, open_regular, read_regular
from stoker.rundir.records import RECORD_BYTES, parse_line, typed, typed_value
from stoker.spec.bounded import parse_json
from stoker.spec.data import Data
from stoker.spec.errors import UserError

HEADER_FILE = "stream.json"
JOURNAL_FILE = "journal.jsonl"
ERROR_FILE = "error.json"
HEADER_BYTES = 256 << 20  # it names every file of the data

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
                read_regular(folder / HEADER_FILE, max_bytes=HEADER_BYTES), max_bytes=HEADER_BYTES
            )
            files = [DataFile(**file | {"path": Path(file["path"])}) for file in record["files"]]
            return cls(**record | {"data": Data.model_validate(record["data"]), "files": files})
        except (OSError, ValueError, TypeError, KeyError) as e:
            raise UserError(
                f"{folder / HEADER_FILE} is missing or damaged", remedy="Delete the folder and start the run again"
            ) from e


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One unit of the data whose shards are whole."""

    train: Shard
    validation: Shard
    documents: int
    bytes: int
    skipped: int
    then: At
    """Where the next unit begins."""


@dataclass(slots=True)
class Journal:
    """Read as it grows, by any number of processes; written by the one that holds the folder's lock."""

    folder: Path
    entries: list[Entry] = field(default_factory=list)
    ended: bool = False
    tokens: int = 0
    """To train on, so far."""
    _read: int = 0

    def refresh(self) -> None:
        """What was added since; a line torn by a kill is passed over."""
        try:
            with open_regular(self.folder / JOURNAL_FILE) as file:
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
                    self.entries.append(typed_value(Entry, record))
                    self.tokens += self.entries[-1].train.tokens
            except ValueError:
                continue

    @property
    def at(self) -> At:
        return self.entries[-1].then if self.entries else (0, 0)

    def add(self, entry: Entry) -> None:
        """The shards are synced by now; after this the line is too, and they count."""
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
    """As far as it is known."""
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
        said = typed(dict[str, str], read_regular(folder / ERROR_FILE, max_bytes=RECORD_BYTES))
        return UserError(said["problem"], remedy=said["remedy"])
    except (OSError, ValueError, KeyError):
        return None


def clear_error(folder: Path) -> None:
    (folder / ERROR_FILE).unlink(missing_ok=True)
