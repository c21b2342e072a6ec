"""A backend is a folder and a line in the registry: no verb has to know of it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.toy.backend import PIDS
from tests.processes import is_alive
from tests.waiting import until

SCRIPT = """\
import os, pathlib, time
print("worker", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
folder = pathlib.Path(os.environ["STOKER_RUN_DIR"])
while not (folder / "finish").exists():
    time.sleep(0.05)
"""
PROJECT = Path(__file__).parents[2]


class Toy:
    """The command line with a third backend, and a run on it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, ""

    @property
    def remote_run(self) -> Path:
        return self.folder / "disk" / self.name

    def stoker(self, *arguments: str, code: int | None = 0) -> str:
        command = [sys.executable, "-m", "tests.backends.toy", *arguments]
        paths = {"PYTHONPATH": f"{PROJECT / 'src'}:{PROJECT}"}
        done = subprocess.run(command, cwd=self.folder, env=os.environ | paths, capture_output=True, text=True)
        assert code in (None, done.returncode), done.stdout + done.stderr
        return done.stdout + done.stderr

    def launch(self) -> None:
        place = ["on=toy", f"on.root={self.folder / 'disk'}"]
        output = self.stoker("launch", f"script={self.folder / 'train.py'}", "name=tale", *place, "--json")
        self.name = json.loads(output)["name"]

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.stoker("status", self.name, "--json"))
        return status

    def wait_for(self, line: str, *rank: str) -> None:
        until(lambda: line in self.stoker("logs", self.name, *rank, code=None))


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[Toy]:
    (tmp_path / "train.py").write_text(SCRIPT)
    toy = Toy(tmp_path)
    yield toy
    for file in (tmp_path / "disk").glob(f"*/{PIDS}"):
        for pid in filter(is_alive, json.loads(file.read_text())["pids"].values()):
            os.kill(pid, signal.SIGKILL)


def test_the_backend_is_small() -> None:
    files = list((PROJECT / "tests" / "backends" / "toy").glob("*.py"))
    assert sum(len(file.read_text().splitlines()) for file in files) < 150


@pytest.mark.slow
def test_every_verb_works_on_a_backend_that_is_one_folder_and_its_lines_in_the_registries(toy: Toy) -> None:
    toy.launch()
    toy.wait_for("worker 0 of 1")
    assert toy.status()["state"] == "running"
    assert [row["name"] for row in json.loads(toy.stoker("ps", "--json"))] == [toy.name]
    assert "attempt 1 with 1 worker" in toy.stoker("events", toy.name)
    assert "nothing is wrong" in toy.stoker("why", toy.name)
    assert "is scaled from 1 to 2 nodes" in toy.stoker("scale", toy.name, "2")
    toy.wait_for("worker 1 of 2", "--rank", "1")
    assert "to save and stop" in toy.stoker("stop", toy.name)
    assert toy.status()["state"] == "paused"


def test_a_run_on_the_toy_backend_ends_and_is_done(toy: Toy) -> None:
    toy.launch()
    until(lambda: toy.status()["state"] == "running")
    (toy.remote_run / "finish").touch()
    until(lambda: toy.status()["state"] == "done")


def test_an_unknown_backend_is_refused_and_the_known_ones_are_named(toy: Toy) -> None:
    assert "none of local, kubernetes, toy" in toy.stoker("launch", "script=x.py", "on=tower", code=2)
