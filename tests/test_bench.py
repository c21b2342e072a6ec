"""`make bench` runs every benchmark, and RESULTS.md has one table for each."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import BENCHES, FOLDER, HELPERS, gpu_missing

ROOT = Path(__file__).parents[1]


def test_every_file_is_a_benchmark_or_a_helper_of_some() -> None:
    files = {path.stem for path in FOLDER.glob("*.py")} - {"__main__"}
    assert files == {bench.file for bench in BENCHES.values()} | set(HELPERS)


def test_the_results_have_one_table_for_each() -> None:
    text = (FOLDER / "RESULTS.md").read_text()
    by_title = {part.partition(":")[0].partition("\n")[0]: part for part in re.split(r"^## ", text, flags=re.MULTILINE)}
    for file in {bench.file for bench in BENCHES.values()}:
        assert len(re.findall(r"^\| -", by_title[file], re.MULTILINE)) == 1, file


@pytest.mark.parametrize("name", [name for name, bench in BENCHES.items() if bench.short])
def test_the_short_form_has_options_that_there_are(name: str) -> None:
    text = (FOLDER / f"{BENCHES[name].file}.py").read_text()
    for option in re.findall(r"--[a-z-]+", BENCHES[name].short):
        assert f'"{option}"' in text, option


def test_what_cannot_run_here_is_left_out_in_one_line() -> None:
    if gpu_missing() is None:
        pytest.skip("this machine has a GPU")
    argv = [sys.executable, "-m", "bench", "train-gpu"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "== train-gpu: left out: it needs an NVIDIA GPU\n")
