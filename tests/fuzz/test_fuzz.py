"""Hostile and broken input gives a one-line error: no traceback, hang or execution, no change outside its folder."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.cases import KINDS

SHORT, LONG = 64, 640


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "base"


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_input_gives_a_one_line_error(kind: str, base: Path) -> None:
    fuzz(kind, base, count=SHORT, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_input_of_any_seed_gives_a_one_line_error(kind: str, base: Path) -> None:
    fuzz(kind, base, count=LONG, seed=random.randrange(1_000_000))


def fuzz(kind: str, base: Path, *, count: int, seed: int) -> None:
    """Run the cases in a new process, which forks for each case."""
    argv = [sys.executable, "-m", "tests.fuzz", kind, "--count", str(count), "--seed", str(seed), "--base", str(base)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(argv)}\n{done.stdout[-20_000:]}\n{done.stderr[-5_000:]}"
