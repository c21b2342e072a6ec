import sys
from pathlib import Path
from typing import Literal

import pytest

from stoker.backends.backend import Facts
from stoker.backends.local.plan import plan
from stoker.spec import contract
from stoker.spec.data import Data
from stoker.spec.errors import MissingExtra, UserError
from stoker.spec.on import LocalOn
from stoker.spec.run import RunSpec, ScriptSpec, Until

LAPTOP = Facts(cores=8, gpus=(), torch="2.15.0")
GPUS = Facts(cores=16, gpus=("H100", "H100"), torch="2.15.0")
RUN = Path("/runs/tale")


def spec(workers: int | Literal["auto"] = "auto", device: Literal["auto", "cpu", "cuda"] = "auto") -> RunSpec:
    return RunSpec(data=Data(path="x"), until=Until(steps=1), on=LocalOn(workers=workers, device=device))


@pytest.mark.parametrize(
    ("requested", "facts", "workers", "device"),
    [
        (spec(), LAPTOP, 1, "cpu"),
        (spec(2), LAPTOP, 2, "cpu"),
        (spec(), GPUS, 2, "cuda"),
        (spec(1), GPUS, 1, "cuda"),
        (spec(device="cpu"), GPUS, 1, "cpu"),
        (spec(4, "cpu"), GPUS, 4, "cpu"),
    ],
)
def test_workers_are_the_gpus_or_one_unless_the_spec_sets_them(
    requested: RunSpec, facts: Facts, workers: int, device: str
) -> None:
    submission = plan(requested, facts, RUN)
    assert (submission.workers, submission.device) == (workers, device)


def test_the_supervisor_gets_the_run_the_workers_and_their_share_of_the_cores() -> None:
    submission = plan(spec(3), LAPTOP, RUN)
    assert submission.argv == (sys.executable, "-P", "-m", "stoker.supervise", "/runs/tale", "--workers", "3")
    assert submission.env == {"OMP_NUM_THREADS": "2", **contract.MALLOC_ENV}


def test_more_workers_than_cores_get_one_thread_each() -> None:
    assert plan(spec(20), LAPTOP, RUN).env["OMP_NUM_THREADS"] == "1"


def test_planning_is_pure() -> None:
    assert plan(spec(2), GPUS, RUN) == plan(spec(2), GPUS, RUN)


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_more_workers_than_gpus_are_refused_with_both_numbers(device: Literal["auto", "cuda"]) -> None:
    with pytest.raises(UserError, match=r"on.workers is 3, but this machine has 2 GPUs. Set on.workers=2"):
        plan(spec(3, device), GPUS, RUN)


def test_cuda_on_a_machine_without_a_gpu_is_refused() -> None:
    with pytest.raises(UserError, match=r"no GPU that torch can use. Set on.device=cpu"):
        plan(spec(device="cuda"), LAPTOP, RUN)


def test_a_machine_without_torch_says_how_to_get_it() -> None:
    bare = Facts(cores=2, gpus=(), torch=None)
    with pytest.raises(MissingExtra, match=r"pip install 'stoker\[train\]'"):
        plan(spec(), bare, RUN)


def test_a_script_is_what_the_workers_run_with_its_own_use_of_memory() -> None:
    submission = plan(ScriptSpec(script="/x/train.py", args=["--lr", "1e-3"], on=LocalOn(workers=2)), LAPTOP, RUN)
    assert submission.argv[-5:] == ("--", sys.executable, "/x/train.py", "--lr", "1e-3")
    assert submission.env == {"OMP_NUM_THREADS": "4"}


def test_a_submission_says_where_secrets_are_and_not_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "open-sesame")
    submission = plan(ScriptSpec(script="train.py", secrets={"TOKEN": "env:MINE"}), LAPTOP, RUN)
    assert submission.secrets == {"TOKEN": "env:MINE"}
    assert "open-sesame" not in repr(submission)
