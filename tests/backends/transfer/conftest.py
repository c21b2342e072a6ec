"""The transfer program of a pod, as a process on this machine whose pipes can be cut after any byte."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from stoker.backends.transfer.frames import PeerLost
from stoker.spec.errors import UserError


class Cable:
    """The pipes to such a process: counts the bytes in each direction, and breaks on request."""

    def __init__(self, argv: list[str], *, up: int | None, down: int | None) -> None:
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self._out = self.process.stdin.fileno(), self.process.stdout.fileno()
        self._left = {"up": up, "down": down}
        self.sent = self.received = 0

    def read(self, most: int) -> bytes:
        data = os.read(self._out, self._allowed("down", min(most, 1 << 16)))
        self.received += len(data)
        return data

    def write(self, data: bytes) -> None:
        while data:
            written = os.write(self._in, data[: self._allowed("up", len(data))])
            self.sent += written
            data = data[written:]

    def close(self) -> None:
        """As when a pod is deleted: the process has no time for anything."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def _allowed(self, way: str, most: int) -> int:
        left = self._left[way]
        if left is None:
            return most
        if left == 0:
            self.close()
            raise PeerLost(f"cut on its way {way}")
        self._left[way] = left - min(left, most)
        return min(left, most)


class RemoteFolder:
    """An endpoint that is a local folder."""

    def __init__(self, folder: Path) -> None:
        self.root = str(folder)
        self.cuts: list[tuple[int | None, int | None] | None] = []
        """For each connection the bytes that get through up and down; None: it fails. Later ones are not cut."""
        self.cables: list[Cable] = []

    def connect(self, argv: Sequence[str]) -> Cable:
        cut = self.cuts.pop(0) if self.cuts else (None, None)
        if cut is None:
            raise UserError("the claim is gone", remedy="Create it")
        up, down = cut
        self.cables.append(Cable([sys.executable, "-P", *argv], up=up, down=down))
        return self.cables[-1]

    @property
    def sent(self) -> int:
        return sum(cable.sent for cable in self.cables)

    @property
    def received(self) -> int:
        return sum(cable.received for cable in self.cables)


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[RemoteFolder]:
    folder = tmp_path / "volume"
    folder.mkdir()
    endpoint = RemoteFolder(folder)
    yield endpoint
    for cable in endpoint.cables:
        cable.close()


@pytest.fixture
def seed() -> int:
    number = random.randrange(2**32)
    print(f"seed {number}")
    return number


@pytest.fixture
def tree(tmp_path: Path) -> Callable[..., Path]:
    """A folder with files of all sizes, the same for the same seed."""

    def make(seed: int, *, name: str = "books", large: int = 3_000_000) -> Path:
        draw, folder = random.Random(seed), tmp_path / name
        sizes = [0, 1, 17, 65_536, 300_000, large, *(draw.randrange(5000) for _ in range(30))]
        for number, size in enumerate(sizes):
            file = folder / draw.choice(["", "a", "a/b", "ü b"]) / f"file {number}.bin"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(draw.randbytes(size))
        return folder

    return make


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def files_in() -> Callable[[Path], dict[str, bytes]]:
    """files_in(folder): the content of all files below it, by name, without a manifest."""

    def read(folder: Path) -> dict[str, bytes]:
        return {name: data for name, data in contents(folder).items() if name != ".stoker-manifest.json"}

    return read
