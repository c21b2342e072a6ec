"""A model that is too large for the machine is refused before anything is created."""

from pathlib import Path

import pytest

from stoker.backends.backend import Facts
from stoker.backends.local.memory import bytes_per_worker
from stoker.backends.local.plan import plan
from stoker.spec.errors import UserError
from stoker.spec.estimate import activation_bytes, parameters
from stoker.spec.load import load
from stoker.spec.model import Model
from stoker.spec.run import RunSpec

GIB = 2**30
LAPTOP = Facts(cores=2, gpus=(), torch="2.15.0", memory=24 * GIB)
GPUS = Facts(cores=16, gpus=("H100",) * 8, torch="2.15.0", memory=2000 * GIB, gpu_memory=80 * GIB)


def spec(*overrides: str) -> RunSpec:
    return load(None, ["data=x", "until.steps=1", *overrides]).spec


def refusal(facts: Facts, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        plan(spec(*overrides), facts, Path("/runs/tale"))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_run_needs_sixteen_bytes_per_parameter_and_one_sequence() -> None:
    requested = spec("model=llama2-7b", "batch.length=4096")
    sequence = activation_bytes(requested.model, 32000, 4096, "bf16")
    assert bytes_per_worker(requested, requested.model) == 16 * 6_738_415_616 + sequence


def test_the_message_names_the_needed_and_the_available_memory_and_a_preset_that_fits() -> None:
    message = refusal(LAPTOP, "model=llama2-7b")
    assert "training this llama needs at least 101." in message
    assert "this machine has 24.0 GiB" in message
    assert "The largest preset that fits is llama3.2-1b (19.0 GiB): model=llama3.2-1b" in message


def test_workers_on_cpus_share_the_memory_and_fewer_may_fit() -> None:
    requested = ["model.layers=24", "model.heads=16", "model.width=1024", "model.vocab=50257", "on.workers=5"]
    assert "for each of 5 workers, and this machine has 24.0 GiB. Set on.workers=4, which fits" in refusal(
        LAPTOP, *requested
    )
    assert plan(spec(*requested, "on.workers=4"), LAPTOP, Path("/runs/tale")).workers == 4


def test_every_gpu_needs_memory_for_the_whole_model() -> None:
    assert "a GPU here has 80.0 GiB. The largest preset that fits is llama3.2-3b" in refusal(GPUS, "model=llama3.1-8b")
    assert plan(spec("model=llama3.2-3b"), GPUS, Path("/runs/tale")).workers == 8


def test_a_teacher_needs_its_weights_in_every_worker() -> None:
    requested, teacher = (
        spec("model=gpt2-small", "data.tokenizer.train=300", "on.workers=8"),
        Model(family="llama", vocab=300),
    )
    alone = bytes_per_worker(requested, requested.model)
    assert bytes_per_worker(requested, requested.model, teacher) == alone + 4 * parameters(teacher, 300)
    plan(requested, LAPTOP, Path("/runs/tale"))
    large = teacher.model_copy(update={"layers": 120, "width": 1536})
    with pytest.raises(
        UserError, match=r"this gpt2 beside its teacher needs .* each of 8 workers.* on\.workers=[1-7],"
    ):
        plan(requested, LAPTOP, Path("/runs/tale"), teacher=large)
    with pytest.raises(UserError, match=r"Use a smaller teacher: its weights alone are \d+"):
        plan(requested, LAPTOP, Path("/runs/tale"), teacher=large.model_copy(update={"layers": 900}))


def test_a_machine_too_small_for_any_preset_still_gets_a_remedy() -> None:
    tiny = Facts(cores=2, gpus=(), torch="2.15.0", memory=GIB // 64)
    assert "Use fewer layers or a smaller width" in refusal(tiny, "model=llama-tiny")


def test_unknown_memory_and_a_model_from_own_code_are_not_checked() -> None:
    unknown = Facts(cores=2, gpus=(), torch="2.15.0")
    plan(spec("model=llama2-70b"), unknown, Path("/runs/tale"))
    plan(spec("model={family: mine:build, layers: 900, width: 9600}"), LAPTOP, Path("/runs/tale"))


@pytest.mark.parametrize("options", [["--dry-run"], []])
def test_the_command_line_refuses_it_and_leaves_nothing(stoker, books: Path, options: list[str]) -> None:
    done = stoker("train", "model=llama2-70b", f"data={books}", "until.steps=1", "on.device=cpu", *options, code=2)
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("stoker: training this llama needs at least 1")
    assert "GiB" in line
    assert done.stdout == ""
    assert not list(stoker.folder.iterdir())
