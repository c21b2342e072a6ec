"""The result of an audit: what was counted, and what is wrong."""

from dataclasses import dataclass, field

PROBLEMS_KEPT = 20


@dataclass(kw_only=True, slots=True)
class MixtureShare:
    """What the model read of one part of a mixture."""

    name: str
    weight: float
    """Its share, out of 1."""
    expected: int
    """Samples of it in every complete block."""
    samples: int = 0
    """Given to the model."""
    epochs: int = 0
    """Complete passes through it."""


@dataclass(kw_only=True, slots=True)
class AuditResult:
    steps: int = 0
    attempts: int = 0
    epochs: int = 0
    """Complete ones, each a permutation of all samples."""
    samples: int = 0
    """Samples given to the model, over all epochs."""
    missing: int = 0
    duplicated: int = 0
    mismatched: int = 0
    """Hashes that differ from those of the shards' tokens."""
    problems: list[str] = field(default_factory=list)
    """The first problems, as sentences."""
    sources: list[MixtureShare] = field(default_factory=list)
    """For a mixture: each part."""
    unchecked: list[str] = field(default_factory=list)
    """What the run has no record of, so that the proof does not cover it."""
    skipped: int = 0
    """Records that could not be read."""

    @property
    def ok(self) -> bool:
        return not (self.missing or self.duplicated or self.mismatched or self.problems)

    def add_problem(self, problem: str) -> None:
        if len(self.problems) < PROBLEMS_KEPT:
            self.problems.append(problem)
