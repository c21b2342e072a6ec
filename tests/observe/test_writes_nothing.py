"""Reading a run writes no file and creates no folder, in observe and in all that it calls."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stoker.data.shards import TokenSet
from stoker.observe.audit import audit
from stoker.observe.runs import all_runs, find, not_found
from stoker.observe.step_batch import documents, step_batch, token_set
from stoker.observe.why import why
from tests.observe.ledgers import Ledgers

WRITING_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
WRITING_EVENTS = {
    "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.utime",
}  # fmt: skip


class Writes:
    """Audit hooks cannot be removed, so this one records only within `recorded`."""

    def __init__(self) -> None:
        self.recording = False
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    @contextmanager
    def recorded(self) -> Iterator[list[str]]:
        self.seen, self.recording = [], True
        try:
            yield self.seen
        finally:
            self.recording = False

    def _hook(self, event: str, args: tuple[object, ...]) -> None:
        if not self.recording:
            return
        if event == "open" and isinstance(args[2], int) and args[2] & WRITING_FLAGS:
            self.seen.append(f"open {args[0]!r}")
        elif event in WRITING_EVENTS:
            self.seen.append(f"{event} {args}")


@pytest.fixture(scope="module")
def writes() -> Writes:
    return Writes()


def test_a_write_is_recorded(writes: Writes, tmp_path: Path) -> None:
    with writes.recorded() as seen:
        (tmp_path / "folder").mkdir()
        (tmp_path / "file").write_text("text")
    assert len(seen) == 2


def test_reading_a_run_writes_nothing(writes: Writes, ledgers: Ledgers, tokens: TokenSet) -> None:
    ledgers.attempt(1, start=0, stop=8)
    run = ledgers.dir
    with writes.recorded() as seen:
        assert [listed_run.name for listed_run in all_runs(run.path.parent)] == [run.name]
        assert find(run.name, run.path.parent).path == run.path
        assert "there is no run" in not_found("other", run.path.parent).problem
        assert why(run).state
        assert documents(run, step_batch(run, 3, token_set(run)), tokens)
        assert audit(run).steps == 8
    written = [write for write in seen if "__pycache__" not in write]  # of modules that are imported only now
    assert written == []
