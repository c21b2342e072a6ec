"""`make test` on a fresh machine: Debian with Python, pip and make, and nothing else."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import cluster, host
from tests.bare import bare
from tests.needing import root_with

ROOT = Path(__file__).parents[1]


@pytest.mark.soak
def test_every_test_passes_in_a_clean_clone(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    root_with("debootstrap", "git")
    if missing := cluster.unsupported():
        pytest.skip(missing)
    if not host.none():
        pytest.skip("a lab is running on this machine, and a second one is not possible")
    log = tmp_path / "log"
    with bare(tmp_path / "root") as machine, log.open("w") as output:
        clone = machine.root / "root" / "stoker"
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone)], check=True)
        try:
            code = machine.run(output, "make", "-C", "/root/stoker", "test", CI="true")
        finally:  # stop a lab that was interrupted
            machine.run(output, "sh", "-c", "cd /root/stoker && test ! -e .venv || .venv/bin/python -m lab down")
    lines = log.read_text().splitlines()
    assert code == 0, "\n".join(lines[-200:])
    [took] = [line.split()[0] for line in lines if "lab tests ran on a real cluster" in line]
    record_property("summary", f"make test on a fresh machine took {took} (minutes:seconds)")
