"""The result of a diagnosis or a measurement: what is wrong, and what to do about it."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    id: str
    """Which rule or measurement found it."""
    cause: str
    remedy: str
    count: int = 1
    """How many pods, claims and so on it applies to."""
    pods: tuple[str, ...] = ()
    """The pods that it names."""
