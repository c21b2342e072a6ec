"""`make bench` runs every benchmark, and RESULTS.md has one table for each."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import BENCHES, FOLDER, HELPERS, gpu_missing
from tests.processes import is_alive
from tests.waiting import until

ROOT = Path(__file__).parents[1]


def test_every_file_is_a_benchmark_or_a_helper() -> None:
    files = {path.stem for path in FOLDER.glob("*.py")} - {"__main__"}
    assert files == {bench.file for bench in BENCHES.values()} | set(HELPERS)


def test_the_results_have_one_table_for_each() -> None:
    text = (FOLDER / "RESULTS.md").read_text()
    by_title = {part.partition(":")[0].partition("\n")[0]: part for part in re.split(r"^## ", text, flags=re.MULTILINE)}
    for file in {bench.file for bench in BENCHES.values()}:
        assert len(re.findall(r"^\| -", by_title[file], re.MULTILINE)) == 1, file


@pytest.mark.parametrize("name", [name for name, bench in BENCHES.items() if bench.short])
def test_the_options_of_the_short_form_exist(name: str) -> None:
    text = (FOLDER / f"{BENCHES[name].file}.py").read_text()
    for option in re.findall(r"--[a-z-]+", BENCHES[name].short):
        assert f'"{option}"' in text, option


@pytest.mark.parametrize("name", [name for name, bench in BENCHES.items() if not bench.short])
def test_a_benchmark_with_options_has_a_short_form(name: str) -> None:
    assert "add_argument" not in (FOLDER / f"{BENCHES[name].file}.py").read_text()


def test_a_benchmark_that_cannot_run_here_is_skipped_in_one_line() -> None:
    if gpu_missing() is None:
        pytest.skip("this machine has a GPU")
    argv = [sys.executable, "-m", "bench", "train-gpu"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "== train-gpu: skipped: it needs an NVIDIA GPU\n")


def test_a_benchmark_uses_the_stoker_of_the_pythonpath(tmp_path: Path) -> None:
    (tmp_path / "stoker.py").write_text("raise SystemExit('the other stoker')\n")
    code = "import os, sys\nfrom bench.__main__ import run\n"
    code += "os.environ['PYTHONPATH'] = sys.argv[1]\nsys.exit(not run('seek'))"
    argv = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "the other stoker" in done.stderr


def test_a_contestant_that_ends_early_is_reported_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`end` must not fail then, or the other contestant would be left stopped."""
    monkeypatch.syspath_prepend(str(FOLDER))
    from contest import start  # noqa: PLC0415 (bench/ is in the path only here)

    argv = [sys.executable, "-c", "raise SystemExit('no memory left')"]
    contestant = start("peer", argv, times=tmp_path / "times", log=tmp_path / "log")
    with pytest.raises(SystemExit, match="peer ended:\nno memory left"):
        contestant.warm_up()
    contestant.end()


def test_a_contestant_dies_with_the_benchmark(tmp_path: Path) -> None:
    """It may be stopped, and would stay so."""
    code = "import os, sys\nfrom pathlib import Path\nfrom contest import start\n"
    code += "argv = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
    code += "contestant = start('peer', argv, times=Path('times'), log=Path('log'))\n"
    code += "print(contestant.process.pid, flush=True)\nos.kill(os.getpid(), 9)"
    path = os.pathsep.join(filter(None, [str(FOLDER), os.environ.get("PYTHONPATH")]))
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    until(lambda: not is_alive(int(done.stdout)))
