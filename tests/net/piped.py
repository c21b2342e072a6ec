"""An agent as a process of this machine."""

import subprocess
from collections.abc import Iterator


class Piped:
    """The agent's stdin and stdout."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def lines(self) -> Iterator[str]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield line.decode()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
