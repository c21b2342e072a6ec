"""Counts the samples of a mixture: each part has its share of every block, and uses all samples before any again."""

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from stoker.observe.audit_result import AuditResult, MixtureShare

BLOCK = 4096  # samples; a copy of the trainer's number, as the audit uses none of the code that chose the samples


class Shares:
    def __init__(
        self, weights: list[tuple[str, float]], counts: list[int], sequences: int, result: AuditResult
    ) -> None:
        """Raises ValueError for a part without samples: batch.length in spec.yaml was changed."""
        for (name, _), count in zip(weights, counts, strict=True):
            if not count:
                raise ValueError(f"{name} has less than one sequence")
        total = sum(weight for _, weight in weights)
        quotas = _quotas([weight for _, weight in weights])
        self.sources = [
            MixtureShare(name=name, weight=weight / total, expected=quota)
            for (name, weight), quota in zip(weights, quotas, strict=True)
        ]
        self._result, self._sequences = result, sequences
        self._ends = np.cumsum(counts)
        self._used = [np.zeros(count, np.int64) for count in counts]
        self._in_step = self._in_block = 0
        self._before = [0] * len(counts)  # samples of each part in complete blocks

    def add(self, step: int, ids: NDArray[np.int64]) -> None:
        self._in_step += len(ids)
        if len(ids) and not 0 <= ids.min() <= ids.max() < self._ends[-1]:
            self._result.add_problem(f"step {step}: sample {ids.max()} does not exist")
            return
        while len(ids):
            room = BLOCK - self._in_block
            self._draw(ids[:room])
            ids = ids[room:]
            if self._in_block == BLOCK:
                self._end_block(step)

    def end_step(self) -> None:
        size, self._in_step = self._in_step, 0
        if size not in (0, self._sequences):
            self._result.add_problem(f"step {self._result.steps} used {size} samples instead of {self._sequences}")

    def close(self, *, whole: bool) -> None:
        """Check the block that the run ended in: no part may have more than its share of it."""
        del whole  # a run on a mixture may end at any sample
        for number, source in enumerate(self.sources):
            if source.samples - self._before[number] > source.expected:
                self._result.add_problem(f"{source.name} has more than its share of the last samples")
            self._check_uses(number, drawn=self._before[number] + source.expected * (self._in_block > 0))
            source.epochs = int(self._used[number].min())

    def _draw(self, ids: NDArray[np.int64]) -> None:
        of = np.searchsorted(self._ends, ids, side="right")
        for number, source in enumerate(self.sources):
            used = ids[of == number] - (self._ends[number - 1] if number else 0)
            np.add.at(self._used[number], used, 1)
            source.samples += len(used)
        self._in_block += len(ids)

    def _end_block(self, step: int) -> None:
        self._in_block = 0
        for number, source in enumerate(self.sources):
            had = source.samples - self._before[number]
            if had != source.expected:
                self._result.add_problem(
                    f"step {step}: {source.name} had {had} of the last {BLOCK} samples, and its weight gives it "
                    f"{source.expected}"
                )
            epochs = self._before[number] // len(self._used[number])
            self._before[number] = source.samples
            if source.samples // len(self._used[number]) > epochs:  # it has completed an epoch of its own
                self._check_uses(number, drawn=source.samples)

    def _check_uses(self, number: int, *, drawn: int) -> None:
        """After `drawn` samples no sample of the part was used less often than the others, or more than once more."""
        used, name = self._used[number], self.sources[number].name
        least, most = self._before[number] // len(used), math.ceil(drawn / len(used))
        behind, ahead = int((used < least).sum()), int((used > most).sum())
        self._result.missing += behind
        self._result.duplicated += ahead
        if behind or ahead:
            self._result.add_problem(
                f"{name}: {behind} of its samples were used less than {least} times, {ahead} more than {most} times"
            )


def _quotas(weights: list[float]) -> list[int]:
    exact = [Fraction(weight) * BLOCK / sum(map(Fraction, weights)) for weight in weights]
    quotas = [int(share) for share in exact]
    for _ in range(BLOCK - sum(quotas)):
        short = max(range(len(exact)), key=lambda source: (exact[source] - quotas[source], -source))
        quotas[short] += 1
    return quotas
