"""A terminal of one's own, and runs in the background that do not outlive a test."""

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
    """A command as a person runs it: on a screen, and hung up on when the screen goes away."""

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
        """What it has shown, up to the end of the command or the text that is waited for."""
        while until is None or until not in self.text:
            try:
                data = os.read(self._screen, 65536)
            except OSError:  # nobody holds the other side any more
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

    def start(*words: str, **environment: str) -> Terminal:
        argv = [sys.executable, "-m", "stoker", *words]
        opened.append(Terminal(argv, folder=tmp_path, environment=environment))
        return opened[-1]

    yield start
    for one in opened:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """`stoker …` in this process, in the folder of the test; what processes of its own say is heard too."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: subprocess.CompletedProcess(words, main(words), *capfd.readouterr())


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Path]:
    """A run file of two workers that live until there is a file `enough` in the run; none outlives the test."""
    (tmp_path / "work.py").write_text(SCRIPT)
    path = tmp_path / "work.yaml"
    path.write_text("name: work\nscript: work.py\non: {workers: 2, device: cpu, max_restarts: 0}\n")
    yield path
    for run in all_runs(tmp_path / "runs"):
        if (holder := run.holder()) and holder["pid"]:  # 0 while it is being written down, and that is all of us
            os.kill(holder["pid"], signal.SIGKILL)  # its workers die with it


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, tokens: Path) -> Path:
    """A small run that is done, and has learnt a little; not to be changed."""
    folder = tmp_path_factory.mktemp("trained")
    words = [
        "name=tale", f"data={tokens}", "model.layers=2", "model.heads=2", "model.width=32", "model.context=32",
        "batch.sequences=8", "batch.length=32", "precision=fp32", "compile=false", "optim.lr=1e-2", "until.steps=40",
        "checkpoint.every=20", "eval.every=20", "eval.sequences=5", "log.tensorboard=false", "on.device=cpu",
        "on.workers=1",
    ]  # fmt: skip
    subprocess.run([sys.executable, "-m", "stoker", "train", *words], cwd=folder, check=True, capture_output=True)
    return folder / "runs" / "tale"


@pytest.fixture
def tale(trained: Path, tmp_path: Path) -> Path:
    """The same run under ./runs of a test, for it to use as it likes."""
    return Path(shutil.copytree(trained, tmp_path / "runs" / "tale"))
