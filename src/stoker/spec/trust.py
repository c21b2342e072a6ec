"""Whether the user trusts the code that runs name. Standard library only: it is imported to parse a command."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_trusted: ContextVar[bool] = ContextVar("trusted", default=False)


@contextmanager
def trusting(trust: bool) -> Iterator[None]:
    """Within this context the code that any run names is trusted, if `trust` is set."""
    token = _trusted.set(trust or _trusted.get())
    try:
        yield
    finally:
        _trusted.reset(token)


def is_trusted() -> bool:
    return _trusted.get()
