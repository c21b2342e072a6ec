"""A pseudo-terminal, and runs in the background that end with the test."""

import fcntl
import os
import pty
import shutil
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.cli.main import main
from stoker.observe.runs import all_runs

SCRIPT = """\
import os, pathlib, time
print("worker", os.environ["RANK"], "is up", flush=True)
folder = pathlib.Path(os.environ["STOKER_RUN_DIR"])
while not (folder / "enough").exists():
    time.sleep(0.02)
    (folder / f"alive-{os.environ['RANK']}").touch()
print("worker", os.environ["RANK"], "has had enough", flush=True)
"""


class Terminal:
    """A command in a terminal of its own, which receives SIGHUP when the terminal is closed."""

    def __init__(self, argv: list[str], *, folder: Path, environment: dict[str, str]) -> None:
        self._screen, inside = pty.openpty()
        self.process = subprocess.Popen(
            argv,
            cwd=folder,
            env={**{k: v for k, v in os.environ.items() if k != "NO_COLOR"}, "TERM": "xterm-256color", **environment},
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(inside)
        self.text = ""

    def read(self, *, until: str | None = None) -> str:
        """The output so far, up to the end of the command or the given text."""
        while until is None or until not in self.text:
            try:
                data = os.read(self._screen, 65536)
            except OSError:  # the other side is closed
                break
            if not data:
                break
            self.text += data.decode(errors="replace")
        return self.text

    def interrupt(self) -> int:
        os.write(self._screen, b"\x03")
        self.read()
        return self.process.wait()

    def hang_up(self) -> int:
        os.close(self._screen)
        return self.process.wait()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """`stoker …` in a terminal, in the folder of the test."""
    opened: list[Terminal] = []

    def start(*arguments: str, **environment: str) -> Terminal:
        argv = [sys.executable, "-m", "stoker", *arguments]
        opened.append(Terminal(argv, folder=tmp_path, environment=environment))
        return opened[-1]

    yield start
    for running in opened:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """`stoker …` in this process, in the folder of the test; the output of its child processes is captured too."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: subprocess.CompletedProcess(arguments, main(arguments), *capfd.readouterr())


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Path]:
    """A run file of two workers that run until the file `enough` exists in the run; they end with the test."""
    (tmp_path / "work.py").write_text(SCRIPT)
    path = tmp_path / "work.yaml"
    path.write_text("name: work\nscript: work.py\non: {workers: 2, device: cpu, max_restarts: 0}\n")
    yield path
    for run in all_runs(tmp_path / "runs"):
        if (holder := run.holder()) and holder[
            "pid"
        ]:  # 0 while it is being written, and kill(0) would signal this process too
            os.kill(holder["pid"], signal.SIGKILL)  # its workers die with it


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, tokens: Path) -> Path:
    """A small run that is done; not to be changed."""
    folder = tmp_path_factory.mktemp("trained")
    arguments = [
        "name=tale", f"data={tokens}", "model.layers=2", "model.heads=2", "model.width=32", "model.context=32",
        "batch.sequences=8", "batch.length=32", "precision=fp32", "compile=false", "optim.lr=1e-2", "until.steps=40",
        "checkpoint.every=20", "eval.every=20", "eval.sequences=5", "log.tensorboard=false", "on.device=cpu",
        "on.workers=1",
    ]  # fmt: skip
    subprocess.run([sys.executable, "-m", "stoker", "train", *arguments], cwd=folder, check=True, capture_output=True)
    return folder / "runs" / "tale"


@pytest.fixture
def tale(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run under ./runs of a test, which may change it."""
    return Path(shutil.copytree(trained, tmp_path / "runs" / "tale"))
