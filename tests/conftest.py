"""Fixtures for all tests: the real command, small texts, supervisors, a fake hub."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lab.session import leave
from stoker.data.bert.pairs import Pairs
from stoker.data.prepare import prepare
from stoker.rundir import RunDir
from stoker.spec.data import Data, TrainTokenizer
from tests.answers import answers
from tests.processes import descendants
from tests.waiting import PATIENCE_S, until
from tests.written import events_of

SLOW_FIXTURES = {"stoker", "trained", "nodes", "terminal", "script", "moto", "fake_gcs", "wires", "hub"}
SLOW_NAMES = {"subprocess", "torch", "inside", "Popen", "submit"}
"""Names that the code of a slow test uses. A test that is slow for another reason is marked by hand."""


class Command:
    """`stoker …` in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []

    def __call__(self, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(self._argv(words), cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE_S)
        if code is not None:
            assert done.returncode == code, (
                f"stoker {' '.join(words)} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
            )
        return done

    def start(self, *words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self._argv(words), cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.started.append(process)
        return process

    def run(self, name: str) -> RunDir:
        return RunDir(self.folder / "runs" / name)

    @staticmethod
    def _argv(words: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-m", "stoker", *words]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that start commands or compute with torch as `slow`: `make quick` leaves them out."""
    for item in items:
        if isinstance(item, pytest.Function) and (
            SLOW_FIXTURES.intersection(item.fixturenames) or SLOW_NAMES.intersection(item.function.__code__.co_names)
        ):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def signals_that_nohup_ignores() -> None:
    """Restore the handlers: a command inherits ignored signals, and would ignore those that the tests send."""
    for number in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL if number == signal.SIGHUP else signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Launched runs are recorded here, not in the home of the user; nor is the user's configuration read."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_STATE_HOME", str(folder))
        environment.setenv("XDG_CONFIG_HOME", str(folder / "no-config"))
        environment.delenv("STOKER_RUNS", raising=False)
        yield folder


@pytest.fixture
def stoker(tmp_path: Path) -> Iterator[Command]:
    command = Command(tmp_path)
    yield command
    for process in command.started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def books(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of text with some structure to learn: sentences of a small grammar, the same each time."""
    folder = tmp_path_factory.mktemp("books")
    draw = random.Random(7)
    names = ["the stoker", "a boiler", "the old engine", "a heap of coal", "the grate"]
    verbs = ["feeds", "warms", "watches", "cleans", "lights"]
    for number in range(4):
        lines = [f"{draw.choice(names)} {draw.choice(verbs)} {draw.choice(names)}." for _ in range(1500)]
        (folder / f"book-{number}.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """A small text file."""
    path = tmp_path / "book.txt"
    path.write_text("".join(f"It was day {i} of the voyage, and the sea was calm.\n" for i in range(300)))
    return path


@pytest.fixture(scope="session")
def tokens(books: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The books as a prepared token set."""
    folder = tmp_path_factory.mktemp("tokens")
    Command(folder)("prepare", str(books), "-o", "set", "--tokenizer", "300", "--validation", "5%")
    return folder / "set"


@pytest.fixture(scope="session")
def pairs(books: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The books as sentence pairs of up to 32 tokens."""
    data = Data(path=str(books), tokenizer=TrainTokenizer(train=300), validation=0.05)
    return prepare(data, tmp_path_factory.mktemp("pairs") / "set", pairs=Pairs(length=32), workers=1).path


@pytest.fixture
def eventually() -> Callable[..., None]:
    """`until` with a short interval, for tests that act at a certain step."""
    return partial(until, every_s=0.002)


@pytest.fixture
def workers_of() -> Callable[[subprocess.Popen[str]], list[int]]:
    """The workers of a `stoker train` in the foreground, in the order of their ranks."""

    def find(process: subprocess.Popen[str]) -> list[int]:
        ranks = {}
        for pid in descendants(process.pid):
            try:
                argv = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                environment = dict(
                    line.split("=", 1) for line in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in line
                )
            except OSError:
                continue
            if "stoker.train" in argv:
                ranks[int(environment["RANK"])] = pid
        return [ranks[rank] for rank in sorted(ranks)]

    return find


@pytest.fixture
def kill_tree() -> Callable[[subprocess.Popen[str]], None]:
    """kill -9 for a command and its descendants at once, as a power cut does."""

    def kill(process: subprocess.Popen[str]) -> None:
        for pid in [*descendants(process.pid), process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait()

    return kill


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Write a module with user code into this folder and return its name. It is unloaded afterwards."""
    monkeypatch.chdir(tmp_path)
    names: list[str] = []
    path = [*sys.path]

    def write(text: str) -> str:
        names.append(f"mine_{len(names)}_{random.randrange(10**9)}")
        (tmp_path / f"{names[-1]}.py").write_text(text)
        return names[-1]

    yield write
    sys.path[:] = path
    for name in names:
        sys.modules.pop(name, None)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop a lab that was started for these tests, after the last worker of the session."""
    if not hasattr(session.config, "workerinput"):
        leave()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the number of lab tests, and the lines that tests recorded as `summary`."""
    reports = [report for group in terminalreporter.stats.values() for report in group if hasattr(report, "nodeid")]
    lab = [report for report in reports if ("lab", True) in getattr(report, "user_properties", [])]
    if lab:
        ran = sum(getattr(report, "when", "") == "call" for report in lab)
        terminalreporter.write_line(f"{ran} lab tests ran on a real cluster")
    for report in reports:
        for name, line in getattr(report, "user_properties", []):
            if name == "summary" and getattr(report, "when", "") == "call":
                terminalreporter.write_line(str(line))


# As `python -m stoker.supervise`, with shorter timeouts.
SUPERVISE = """
import sys
from stoker.supervise.__main__ import main
from stoker.supervise.nodes.membership import Timeouts
sys.exit(main(Timeouts(settle_s=1, replacement_s=2, leader_silence_s=float(sys.argv.pop(1)), head_start_s=0.5)))
"""


class Nodes:
    """Supervisors of one run. Each is a process with its own address; they share only the run directory."""

    def __init__(self, run: RunDir, *command: str, workers: int = 2, nodes: str = "2", silence: float = 60) -> None:
        self.run, self._silence = run, silence
        self.log = run.path.parent / "supervisors.log"
        self._command = command
        self._words = ["--workers", str(workers), "--nodes", nodes, "--port", "0", "--echo"]
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, node: int, **env: str) -> "subprocess.Popen[bytes]":
        words = [*self._words, "--node", str(node), "--address", f"127.0.0.{2 + node}"]
        command = ["--", *self._command] if self._command else []
        argv = [sys.executable, "-c", SUPERVISE, str(self._silence), str(self.run.path), *words, *command]
        pod = {"STOKER_POD": f"pod-{node}"}
        with open(self.log, "ab") as log:
            process = subprocess.Popen(argv, stdout=log, stderr=log, env=os.environ | pod | env)
        self._started.append(process)
        return process

    def begin(self, number: int, **env: str) -> "list[subprocess.Popen[bytes]]":
        """Start this many nodes; node 0 leads."""
        leads = "(pod pod-0) leads"
        before = self.log.read_text().count(leads) if self.log.exists() else 0
        first = self.start(0, **env)
        until(lambda: self.log.read_text().count(leads) > before)
        return [first, *(self.start(node, **env) for node in range(1, number))]

    def close(self) -> None:
        for process in self._started:
            process.kill()  # its workers die with it
            process.wait()

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in events_of(self.run) if event["kind"] == kind]

    def story(self) -> str:
        """The events and logs, for the message of a failed test."""
        return "\n".join([*map(str, events_of(self.run)), self.log.read_text()])

    def worlds(self) -> list[list[int]]:
        """The nodes of each attempt, in the order of their ranks."""
        return [[node["node"] for node in event.get("nodes", [])] for event in self.events("world")]


@pytest.fixture
def nodes() -> Iterator[Callable[..., Nodes]]:
    """nodes(run, command…, workers=2, nodes="2") creates `Nodes`; all are killed when the test ends."""
    created: list[Nodes] = []

    def create(run: RunDir, *command: str, **options: Any) -> Nodes:
        created.append(Nodes(run, *command, **options))
        return created[-1]

    yield create
    for group in created:
        group.close()


class Hub:
    """Serves a folder with the hub's paths. Every `fail_every`-th request fails."""

    def __init__(self, root: Path, fail_every: int) -> None:
        self.root = root
        argv = [sys.executable, str(Path(__file__).with_name("hub_server.py")), str(root), str(fail_every)]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}"

    def write(self, path: str, content: str | bytes) -> Path:
        """Write a file below datasets/OWNER/NAME or files/."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    def requests(self) -> list[dict[str, Any]]:
        log = self.root / "log.jsonl"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Hub]]:
    """Start a fake hub, and set HF_ENDPOINT to it."""
    started: list[Hub] = []

    def start(*, fail_every: int = 0) -> Hub:
        root = tmp_path / f"hub-{len(started)}"
        root.mkdir()
        started.append(Hub(root, fail_every))
        monkeypatch.setenv("HF_ENDPOINT", started[-1].url)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", started[-1].url)  # it was read at import
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "no-login"))
        return started[-1]

    yield start
    for server in started:
        server.close()


@pytest.fixture
def answering() -> Iterator[Callable[..., str]]:
    """answering(answer, tls=None) starts a web server (`tests.answers`) and returns its host:port."""
    with ExitStack() as started:
        yield lambda answer, tls=None: started.enter_context(answers(answer, tls))
