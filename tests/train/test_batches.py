"""The samples of each step, read one step ahead."""

import errno
import os
from pathlib import Path

import pytest

from stoker.data.shards import Split, TokenSet
from stoker.train.batches import Batches


def test_a_read_that_times_out_fails_the_run_and_is_not_awaited(tokens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system may report ETIMEDOUT, which Python raises as TimeoutError."""

    def time_out(*_arguments: object) -> None:
        raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    monkeypatch.setattr(Split, "read", time_out)
    split, asked = TokenSet.open(tokens).train, []
    batches = Batches(
        split, part=0, parts=1, seed=0, sequences=4, length=32, rows=4, positions=None, since=(0, 0)
    )  # fmt: skip
    with pytest.raises(TimeoutError, match=os.strerror(errno.ETIMEDOUT)):
        batches.get(1, give_up=lambda: asked.append(1) or len(asked) > 3)
    batches.close()
