"""Why a run waits, fails, hangs or is slow, on any backend."""

from stoker.backends import backend_of
from stoker.diagnose.diagnose import Diagnosis, diagnose
from stoker.rundir import RunDir


def why(run: RunDir, *, brief: bool = False) -> Diagnosis:
    """`brief`: waits for nothing, and may use records that were read earlier."""
    return diagnose(backend_of(run).facts(run, brief=brief))
