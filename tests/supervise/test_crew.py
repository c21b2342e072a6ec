import sys
from pathlib import Path
from textwrap import dedent

import pytest

from stoker.rundir import RunDir
from stoker.spec.run import ScriptSpec
from stoker.supervise.workers import Job, alone

SAYS = {
    "ValueError: no such thing": "sys.exit(1)",
    "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.9]:53": "sys.exit(1)",
    "killed": "os.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize(
    ("order", "culprit"),
    [
        (["RuntimeError", "ValueError"], 1),
        (["ValueError", "RuntimeError"], 0),
        (["ValueError", "killed"], 1),
        (["RuntimeError", "killed", "ValueError"], 1),
    ],
)
def test_of_workers_that_end_together_the_one_least_likely_to_be_a_victim_is_the_culprit(
    tmp_path: Path, order: list[str], culprit: int
) -> None:
    lines = [next(line for line in SAYS if line.startswith(word)) for word in order]
    parts = [f"if rank == {rank}: print({line!r}, flush=True); {SAYS[line]}" for rank, line in enumerate(lines)]
    script = tmp_path / "train.py"
    script.write_text(dedent("import os, sys\nrank = int(os.environ['RANK'])\n") + "\n".join(parts))
    run = RunDir(tmp_path / "tale")
    spec = ScriptSpec(name="tale", script=str(script))
    run.create(spec, None)
    job = Job(run=run, command=[sys.executable, str(script)], workers=len(order))
    crew = job.start(spec, alone(attempt=1, restart=0, workers=len(order), port=1, served=False), note=print)
    assert crew.wait(60)
    found = crew.culprit()
    crew.end()
    assert found is not None
    assert found.rank == culprit
