"""A real server on this machine, for the duration of a test."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import requests

from stoker.supervise.parent_death import die_with_parent
from tests.waiting import until

HOST = "127.0.0.1"


@contextmanager
def served(argv: Sequence[str], url: str, *, log: Path = Path(os.devnull)) -> Iterator[None]:
    """Start a server and wait until it answers at this URL with any status. It dies with this process."""
    tests = os.getpid()
    with open(log, "wb") as output:
        process = subprocess.Popen(argv, stdout=output, stderr=output, preexec_fn=lambda: die_with_parent(tests))

    def answers() -> bool:
        assert process.poll() is None, f"{argv[0]} ended\n{log.read_text()}"
        with suppress(requests.ConnectionError, requests.Timeout):
            requests.get(url, timeout=5)
            return True
        return False

    try:
        until(answers, every_s=0.02, tell=lambda: f"{argv[0]} does not answer\n{log.read_text()}")
        yield
    finally:
        process.kill()
        process.wait()
