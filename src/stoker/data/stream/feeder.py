"""The feeder of a run: a child of its first worker that prepares shards ahead of the training, and ends with it."""

import os
import subprocess
import sys
import time
from pathlib import Path

from stoker.data.stream.journal import write_error
from stoker.data.stream.reader import StreamSet
from stoker.spec import contract

MODULE = "stoker.data.stream"
TRIES = 3  # for a feeder that dies without progress
RESTART_AFTER_S = 1.0


class Feeder:
    def __init__(self, tokens: StreamSet) -> None:
        self._tokens = tokens
        self._process: subprocess.Popen[str] | None = None
        self._wanted = -1
        self._deaths, self._made = 0, 0
        tokens.train.feeder = self

    def want(self, tokens: int) -> None:
        """Sends the progress to the feeder; starts a feeder if none is running and tokens are missing."""
        if self._tokens.whole or self._tokens.problem():
            return
        code = self._process.poll() if self._process else None
        if self._process is None or code is not None:
            if code is not None and not self._may_start_again(code):
                return
            self._process, self._wanted = _start(self._tokens.path), -1
        if tokens > self._wanted:
            self._wanted = tokens
            self._send(tokens)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def _may_start_again(self, code: int) -> bool:
        made = self._tokens.train.tokens
        self._deaths = 1 if made > self._made else self._deaths + 1
        self._made = made
        if self._deaths > TRIES:
            ending = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            write_error(
                self._tokens.path,
                f"the process that prepares the data {ending}, {self._deaths} times",
                "See what it printed: stoker logs RUN; then run the same command again",
            )
            return False
        if code != contract.EXIT_DONE:
            print(f"the feeder ended with code {code}: starting another", file=sys.stderr, flush=True)
            time.sleep(RESTART_AFTER_S)
        return True

    def _send(self, tokens: int) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{tokens}\n")
            self._process.stdin.flush()
        except OSError:
            self._wanted = -1  # it has just died: the next call starts another


def feeder_of(tokens: object) -> Feeder | None:
    """A feeder for a set that is not complete."""
    return Feeder(tokens) if isinstance(tokens, StreamSet) and not tokens.whole else None


def _start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", MODULE, str(folder)],
        env=os.environ | {"TOKENIZERS_PARALLELISM": "true"},
        stdin=subprocess.PIPE,
        stdout=sys.stderr.fileno(),
        text=True,
    )
