"""What is known of a stream: its header, written once, and its journal, which grows by a line for each whole shard."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from stoker.data.files import DataFile
from stoker.data.shards import VERSION, Dtype, Index, Shard
from stoker.rundir import append_line, write_atomic
from stoker.spec.data import Data
from stoker.spec.errors import UserError

HEADER_FILE = "stream.json"
JOURNAL_FILE = "journal.jsonl"
ERROR_FILE = "error.json"

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
            record: dict[str, Any] = json.loads((folder / HEADER_FILE).read_text())
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
            with open(self.folder / JOURNAL_FILE, "rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data.rfind(b"\n") + 1
        self._read += whole
        for line in data[:whole].splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if record.get("ended"):
                self.ended = True
                continue
            shards = {split: Shard(**record[split]) for split in ("train", "validation")}
            self.entries.append(Entry(**record | shards | {"then": tuple(record["then"])}))
            self.tokens += self.entries[-1].train.tokens

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
        return UserError(**json.loads((folder / ERROR_FILE).read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def clear_error(folder: Path) -> None:
    (folder / ERROR_FILE).unlink(missing_ok=True)
