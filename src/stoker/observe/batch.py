"""Which samples a step was trained on: as the ledger of the attempt that counts has them, and as the order gives."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stoker.data import order
from stoker.data.ledger import AttemptLedger, LedgerStep, read, token_hash
from stoker.data.located import missing, token_folder
from stoker.data.mixture import Mixture
from stoker.data.pairs import AnySet, PairSet
from stoker.data.passages import Passage, Passages, sentences_of
from stoker.data.sets import is_set, open_set
from stoker.data.stream.reading import StreamSet
from stoker.data.tokenizer import TOKENIZER_FILE
from stoker.rundir import RunDir
from stoker.spec.errors import UserError


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """Steps start+1..stop: what an attempt trained and no later one trained again."""

    ledger: AttemptLedger
    start: int
    stop: int
    drawn: int
    """Samples that the run had used before."""
    last: int
    """Samples of step `stop`: the end of an epoch-bound run may be short."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepBatch:
    step: int
    attempt: int
    world: int
    ranks: list[NDArray[np.int64]]
    """The samples of each rank."""
    in_order: bool
    """The order of samples, computed anew, gives the same."""
    in_shards: bool
    """The shards hold the very tokens that the model was given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleView:
    sample: int
    rank: int
    documents: list[Passage]
    source: str | None = None
    """Of a mixture, the part that it is of."""


def line(run: RunDir) -> list[Stretch]:
    """The steps that made the model what it is, from the first to the last that all ranks recorded."""
    try:
        attempts = read(run.ledger)
    except ValueError as e:
        raise UserError(
            f"the ledger of run '{run.name}' contradicts itself: {e}", remedy=f"See: stoker audit {run.path}"
        ) from e
    sequences = run.spec().batch.sequences
    found: list[Stretch] = []
    drawn = 0
    for number, ledger in enumerate(attempts):
        later = [other.start for other in attempts[number + 1 :]]
        stop = min(later) if later else ledger.last()
        if stop > ledger.start:
            last = sum(len(record.samples) for record in _records(run, ledger, stop))
            found.append(Stretch(ledger=ledger, start=ledger.start, stop=stop, drawn=drawn, last=last))
            drawn += (stop - ledger.start - 1) * sequences + last
    return found


def batch(run: RunDir, step: int, tokens: AnySet) -> StepBatch:
    stretch = reached(run, line(run), step)
    records = _records(run, stretch.ledger, step)
    spec = run.spec()
    drawn = stretch.drawn + (step - 1 - stretch.start) * spec.batch.sequences
    ids = np.concatenate([record.samples for record in records])
    ordered = order.batch(
        tokens.train.order(spec.seed, spec.batch.length),
        sequences=spec.batch.sequences,
        step=step,
        positions=drawn + len(ids),
        since=(step - 1, drawn),
    )
    rows = [tokens.train.read(record.samples, spec.batch.length) for record in records]
    return StepBatch(
        step=step,
        attempt=stretch.ledger.attempt,
        world=stretch.ledger.world,
        ranks=[record.samples for record in records],
        in_order=np.array_equal(ids, ordered.ids),
        in_shards=[token_hash(part) for part in rows] == [record.hash for record in records],
    )


def reached(run: RunDir, stretches: list[Stretch], step: int) -> Stretch:
    """The stretch that a step lies in."""
    if not stretches:
        raise UserError(
            f"run '{run.name}' has not trained a step yet", remedy=f"See where it stands: stoker status {run.path}"
        )
    last = stretches[-1].stop
    found = next((stretch for stretch in stretches if stretch.start < step <= stretch.stop), None)
    if found is None:
        which = f"has not reached step {step}; its last is step {last}" if step > last else f"has no step {step}"
        raise UserError(f"run '{run.name}' {which}", remedy=f"Give a step from {stretches[0].start + 1} to {last}")
    return found


def documents(run: RunDir, batch: StepBatch, tokens: AnySet, *, most: int | None = None) -> list[SampleView]:
    """The samples of a step with the documents that each of them is made of; the first `most` of them."""
    spec = run.spec()
    length = spec.batch.length
    if isinstance(tokens, PairSet):
        pairs = [(rank, sample) for rank, ids in enumerate(batch.ranks) for sample in ids.tolist()][:most]
        return [SampleView(sample=sample, rank=rank, documents=sentences_of(tokens, sample)) for rank, sample in pairs]
    passages = lru_cache(lambda one: Passages(one, spec.data.paths))
    found = []
    for rank, sample in [(rank, sample) for rank, ids in enumerate(batch.ranks) for sample in ids.tolist()][:most]:
        source, there, number = None, tokens, sample
        if isinstance(tokens, Mixture):
            (source, _, there), number = tokens.source_of(sample, length)
        read = passages(there).of(number * length, (number + 1) * length + 1)
        found.append(SampleView(sample=sample, rank=rank, documents=read, source=source))
    return found


def token_set(run: RunDir) -> AnySet:
    """The one that a run is trained on."""
    data = run.data()
    folder = token_folder(run)
    if not is_set(folder):
        raise missing(run, folder)
    tokens = open_set(folder)
    if isinstance(tokens, StreamSet):
        tokens.train.abandon()  # a reader waits for nothing
    if tokens.key != data.key:
        raise UserError(f"{folder} holds other data than the run was trained on", remedy="Put the run's own back")
    if tokens.index.tokenizer and not (tokens.tokenizer / TOKENIZER_FILE).is_file():
        raise UserError(f"{folder} has lost its tokenizer", remedy=f"Put {run.tokenizer} there")
    return tokens


def _records(run: RunDir, ledger: AttemptLedger, step: int) -> list[LedgerStep]:
    """Of all ranks, in their order."""
    found = [record for rank in sorted(ledger.files) if (record := ledger.at(rank, step))]
    if len(found) < ledger.world:
        raise UserError(
            f"the ledger of run '{run.name}' has step {step} of {len(found)} ranks only, and there were {ledger.world}",
            remedy=f"See: stoker audit {run.path}",
        )
    return found
