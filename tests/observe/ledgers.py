"""Writes the ledgers of a run without training it."""

from pathlib import Path

from stoker.data import order
from stoker.data.ledger import Ledger
from stoker.data.shards import TokenSet
from stoker.rundir import DataRef, RunDir
from stoker.spec.data import Data
from stoker.spec.derive import share
from stoker.spec.model import Model
from stoker.spec.run import Batch, RunSpec, Until

LENGTH, SEQUENCES, SEED = 16, 10, 3


class Ledgers:
    """A run directory with correct ledgers and nothing else."""

    def __init__(self, folder: Path, tokens: TokenSet) -> None:
        self.tokens, self.samples = tokens, tokens.train.samples(LENGTH)
        self.dir = RunDir(folder)
        spec = RunSpec(
            data=Data(path="."),
            model=Model(layers=1, heads=1, width=8, context=LENGTH),
            batch=Batch(sequences=SEQUENCES, length=LENGTH),
            until=Until(steps=600),
            seed=SEED,
        )
        self.dir.create(spec, DataRef(shards=str(tokens.path), key=tokens.key))

    def attempt(
        self, number: int, *, start: int, stop: int, world: int = 2, drawn: int | None = None, epochs: int | None = None
    ) -> None:
        """Steps start+1..stop, after `drawn` samples; with `epochs`, the last step may be short."""
        since = (start, start * SEQUENCES if drawn is None else drawn)
        positions = epochs * self.samples if epochs else None
        for rank in range(world):
            with Ledger(self.dir.ledger, attempt=number, rank=rank, world=world, start=start) as ledger:
                for step in range(start + 1, stop + 1):
                    ids = order.batch(
                        order.Shuffled(SEED, self.samples),
                        sequences=SEQUENCES,
                        step=step,
                        positions=positions,
                        since=since,
                    ).ids
                    part = share(len(ids), rank=rank, world=world)
                    rank_ids = ids[part.start : part.stop]
                    ledger.record(step, rank_ids, self.tokens.train.read(rank_ids, LENGTH))
