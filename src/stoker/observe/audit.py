"""Proves what a run was trained on: every sample of an epoch once, with exactly the tokens that the shards hold.

It reads the ledgers, index.json and the shards itself, and uses none of the code that chose the samples. The ledger has
to reach the last step that the other records of the run mention.
"""

import hashlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.data.ledger import AttemptLedger, LedgerStep, read
from stoker.data.location import HEADS, missing, token_folder
from stoker.data.mix_file import read_mix
from stoker.observe import agreement
from stoker.observe.audit_result import AuditResult
from stoker.observe.shares import Shares
from stoker.observe.token_index import TokenIndex, read_index
from stoker.rundir import RunDir
from stoker.rundir.commands import cp_command
from stoker.rundir.records import skipped_summary
from stoker.rundir.state import RunState
from stoker.spec import contract
from stoker.spec.derive import derive
from stoker.spec.errors import UserError

RANKS_NAMED = 8


def audit(run: RunDir) -> AuditResult:
    """Check every step that counts, and that no step of the run is missing."""
    result = AuditResult()
    if not run.location().is_here:
        copy = cp_command(run, f"./{run.name}-copy")
        result.add_problem(f"the ledger of run '{run.name}' is in the cluster; copy it first with: {copy}")
        return result
    spec = run.spec()
    stream = _opened(run, spec.batch.length, result)
    evidence = agreement.gather(run)
    try:
        attempts = read(run.ledger)
        drawn = _follow(run, attempts, stream, evidence, result)
        agreement.compare(evidence, attempts, drawn, result)
    except (ValueError, OSError) as e:
        result.add_problem(e.problem if isinstance(e, UserError) else str(e))
    if not result.steps and not result.problems:
        result.add_problem("no step was trained, so there is nothing to prove")
    _count_skipped(run, result)
    return result


def _follow(
    run: RunDir,
    attempts: list[AttemptLedger],
    stream: "_TokenFiles | _MixtureFiles",
    evidence: agreement.Evidence,
    result: AuditResult,
) -> int:
    """Returns the number of samples up to the step of the newest checkpoint."""
    result.attempts = len(attempts)
    done = evidence.exit is not None and evidence.exit.state == RunState.DONE
    saved = evidence.saved.step if evidence.saved else 0
    epoch = _counter(stream, run.spec().batch.sequences, result)
    drawn = 0
    for step, rank, record in _surviving(attempts, result, done=done):
        if step != result.steps:
            epoch.end_step()
        result.steps = step
        result.samples += len(record.samples)
        drawn += len(record.samples) if step <= saved else 0
        epoch.add(step, record.samples)
        if stream.hash(record.samples) != record.hash:
            result.mismatched += 1
            result.add_problem(f"step {step}, rank {rank}: the model was given other tokens than the shards hold")
    epoch.end_step()
    epoch.close(whole=done and _ends_with_an_epoch(run, stream.samples))
    return drawn


def _count_skipped(run: RunDir, result: AuditResult) -> None:
    """An unreadable line of the ledger is a problem; in other records it may come from a killed process."""
    result.skipped += run.skipped.total()
    skipped = {name: number for name, number in run.skipped.items() if name != contract.EXIT_FILE}
    if unreadable := skipped_summary(skipped):
        result.unchecked.append(f"records that could not be read: {unreadable}")


def _surviving(
    attempts: list[AttemptLedger], result: AuditResult, *, done: bool
) -> Iterator[tuple[int, int, LedgerStep]]:
    """(step, rank, record) in order. An attempt counts up to the first step that a later attempt trained again."""
    reached = 0
    for number, attempt in enumerate(attempts):
        later = [other.start for other in attempts[number + 1 :]]
        stop = min(later) if later else None
        if stop is not None and stop <= attempt.start:
            continue
        if attempt.start != reached:
            result.add_problem(
                f"attempt {attempt.attempt} starts after step {attempt.start}, but step {reached} was the last"
            )
        for step, ranks in _steps(attempt, result, stop=stop, done=done):
            reached = step
            yield from ((step, rank, record) for rank, record in ranks)


def _steps(
    attempt: AttemptLedger, result: AuditResult, *, stop: int | None, done: bool
) -> Iterator[tuple[int, list[tuple[int, LedgerStep]]]]:
    """Each step of an attempt with the records of all ranks. The last one may be incomplete while the run trains."""
    lines = {rank: _recorded(attempt, rank, result) for rank in sorted(attempt.files)}
    step = attempt.start
    while stop is None or step < stop:
        step += 1
        records = [(rank, record) for rank in lines if (record := next(lines[rank], None)) is not None]
        if not records and stop is None:
            return
        wrong = next((f"step {record.step} of rank {rank}" for rank, record in records if record.step != step), None)
        if wrong:
            result.add_problem(f"attempt {attempt.attempt}: found {wrong} where step {step} should be")
            return
        absent = attempt.world - len(records)
        if absent:
            in_flight = stop is None and not done and len(lines) == attempt.world and not _any_left(lines)
            if not in_flight:
                named = _named(attempt.world, {rank for rank, _ in records})
                result.add_problem(
                    f"attempt {attempt.attempt}, step {step}: no record of rank {named} of {attempt.world}"
                )
            if not records or in_flight:
                return
        yield step, records


def _recorded(attempt: AttemptLedger, rank: int, result: AuditResult) -> Iterator[LedgerStep]:
    for record in attempt.steps(rank):
        if record is not None:
            yield record
        else:
            result.skipped += 1
            result.add_problem(f"attempt {attempt.attempt}, rank {rank}: a line of the ledger cannot be read")


def _named(world: int, present: set[int]) -> str:
    """The missing ranks, or the first of them."""
    missing = list(islice((rank for rank in range(world) if rank not in present), RANKS_NAMED + 1))
    return ", ".join(map(str, missing[:RANKS_NAMED])) + (" and more" if len(missing) > RANKS_NAMED else "")


def _any_left(lines: dict[int, Iterator[LedgerStep]]) -> bool:
    return any(next(rest, None) is not None for rest in lines.values())


class _Epochs:
    """Divides the ids into epochs, and counts duplicates and missing ones."""

    def __init__(self, samples: int, sequences: int, result: AuditResult, window: int | None = None) -> None:
        self._result = result
        self._window = window
        self._samples = samples
        self._sequences = sequences
        self._in_step = 0
        self._seen = np.zeros(samples, dtype=bool)
        self._drawn = 0

    def add(self, step: int, ids: NDArray[np.int64]) -> None:
        self._in_step += len(ids)
        inside = (ids >= 0) & (ids < self._samples)
        if not inside.all():
            self._result.add_problem(f"step {step}: sample {ids[~inside][0]} does not exist")
            return
        while len(ids):
            room = self._samples - self._drawn
            part, ids = ids[:room], ids[room:]
            self._draw(step, part)
            if self._drawn == self._samples:
                self._end_epoch()

    def end_step(self) -> None:
        """Every step has the size of the batch; only one that ends an epoch and the run may be smaller."""
        size, self._in_step = self._in_step, 0
        if size not in (0, self._sequences) and not (size < self._sequences and self._drawn == 0):
            self._result.add_problem(f"step {self._result.steps} used {size} samples instead of {self._sequences}")

    def close(self, *, whole: bool) -> None:
        """`whole`: the run is done, and ends where an epoch does."""
        if whole and self._drawn:
            short = self._samples - self._drawn
            self._result.missing += short
            self._result.add_problem(f"the run is done, but {short} samples of its last epoch were never used")

    def _draw(self, step: int, part: NDArray[np.int64]) -> None:
        if self._window is not None and self._result.epochs == 0 and not self._result.missing:
            strays = part[part // self._window != np.arange(self._drawn, self._drawn + len(part)) // self._window]
            if len(strays):
                self._result.add_problem(f"step {step}: sample {strays[0]} belongs to another window of the stream")
        fresh = np.unique(part)
        fresh = fresh[~self._seen[fresh]]
        again = len(part) - len(fresh)
        if again:
            self._result.duplicated += again
            self._result.add_problem(f"step {step}: {again} of its samples were used before in the same epoch")
        self._seen[fresh] = True
        self._drawn += len(part)

    def _end_epoch(self) -> None:
        missing = int((~self._seen).sum())
        if missing:
            first = int(np.argmin(self._seen))
            self._result.missing += missing
            self._result.add_problem(
                f"epoch {self._result.epochs + 1}: {missing} samples were never used, such as {first}"
            )
        else:
            self._result.epochs += 1
        self._seen[:] = False
        self._drawn = 0


class _TokenFiles:
    """The training tokens or records, one sample at a time, directly from the files."""

    def __init__(self, folder: Path, key: str, length: int, result: AuditResult) -> None:
        index: TokenIndex = read_index(folder)
        if index.key != key:
            result.add_problem(f"{folder} holds other data than the run was trained on")
        self.length = length
        self.window = max(1, index.window // length) if index.window else None
        self._dtype = np.dtype(index.dtype).newbyteorder("<")
        self._shards: list[tuple[int, int, Path]] = []
        self._record = index.length + 3 + 2 * index.predictions if index.kind == "pairs" else None
        self.tokens = 0
        for shard in index.train:
            path = folder / shard.file
            numbers = shard.records * self._record if self._record else shard.tokens
            if not path.is_file() or path.stat().st_size != numbers * self._dtype.itemsize:
                raise UserError(f"{path} is missing or truncated", remedy=f"Delete {folder} and prepare the data again")
            with open(path, "rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != shard.sha256:
                    result.add_problem(f"{path} is damaged: its sha256 is not the one in index.json")
            self._shards.append((self.tokens, self.tokens + numbers, path))
            self.tokens += numbers
        self._starts = np.array([start for start, _, _ in self._shards])
        self.samples = self.tokens // self._record if self._record else max(0, (self.tokens - 1) // length)

    def row(self, id: int) -> NDArray[Any]:
        """A record of a set of pairs; otherwise a sequence and the token after it."""
        if self._record:
            return self._range(id * self._record, (id + 1) * self._record)
        return self._range(id * self.length, (id + 1) * self.length + 1)

    def hash(self, ids: NDArray[np.int64]) -> str:
        return _hash(self.row, ids, self.samples)

    def _range(self, start: int, stop: int) -> NDArray[Any]:
        parts = []
        shard = int(np.searchsorted(self._starts, start, side="right")) - 1
        while start < stop:
            first, end, path = self._shards[shard]
            count = min(stop, end) - start
            offset = (start - first) * self._dtype.itemsize
            parts.append(np.fromfile(path, self._dtype, count, offset=offset))
            start, shard = start + count, shard + 1
        return np.concatenate(parts)


class _MixtureFiles:
    """Several token sets: the samples of each are numbered after those of the one before."""

    def __init__(self, folder: Path, key: str, length: int, result: AuditResult) -> None:
        mix = read_mix(folder)
        if mix.key != key:
            result.add_problem(f"{folder} holds other data than the run was trained on")
        self.sources = mix.sources
        self.streams = [_TokenFiles(folder / source.folder, source.key, length, result) for source in self.sources]
        self.samples = sum(stream.samples for stream in self.streams)

    def row(self, id: int) -> NDArray[Any]:
        for stream in self.streams:
            if id < stream.samples:
                return stream.row(id)
            id -= stream.samples
        raise IndexError(id)

    def hash(self, ids: NDArray[np.int64]) -> str:
        return _hash(self.row, ids, self.samples)


def _opened(run: RunDir, length: int, result: AuditResult) -> "_TokenFiles | _MixtureFiles":
    folder, key = token_folder(run), run.data().key
    if not any((folder / name).is_file() for name in HEADS):
        raise missing(run, folder)
    return (_MixtureFiles if (folder / "mix.json").is_file() else _TokenFiles)(folder, key, length, result)


def _counter(stream: "_TokenFiles | _MixtureFiles", sequences: int, result: AuditResult) -> "_Epochs | Shares":
    if isinstance(stream, _TokenFiles):
        return _Epochs(stream.samples, sequences, result, stream.window)
    counts = [part.samples for part in stream.streams]
    shares = Shares([(source.name, source.weight) for source in stream.sources], counts, sequences, result)
    result.sources = shares.sources
    return shares


def _hash(row: Callable[[int], NDArray[Any]], ids: NDArray[np.int64], samples: int) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for id in ids.tolist():
        if 0 <= id < samples:
            digest.update(row(id).astype("<i8").tobytes())
    return digest.hexdigest()


def _ends_with_an_epoch(run: RunDir, samples: int) -> bool:
    """Whether the spec says so: `until.patience` may end it earlier."""
    spec = run.spec()
    epochs = spec.until.epochs
    if epochs is None or spec.until.patience:
        return False
    return derive(spec, samples=samples).positions == epochs * samples
