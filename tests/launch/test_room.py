"""A model that is too large for the machine is refused before anything is made."""

from pathlib import Path

import pytest

from stoker.launch.backend import Facts
from stoker.launch.command import submission
from stoker.launch.room import needed
from stoker.spec.errors import UserError
from stoker.spec.load import load
from stoker.spec.model import Model
from stoker.spec.run import RunSpec
from stoker.spec.sizes import activation_bytes, parameters

GIB = 2**30
LAPTOP = Facts(cores=2, gpus=(), torch="2.15.0", memory=24 * GIB)
GPUS = Facts(cores=16, gpus=("H100",) * 8, torch="2.15.0", memory=2000 * GIB, gpu_memory=80 * GIB)


def spec(*words: str) -> RunSpec:
    return load(None, ["data=x", "until.steps=1", *words]).spec


def refusal(facts: Facts, *words: str) -> str:
    with pytest.raises(UserError) as caught:
        submission(spec(*words), facts, Path("/runs/tale"))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_a_run_needs_is_sixteen_bytes_a_parameter_and_one_sequence() -> None:
    asked = spec("model=llama2-7b", "batch.length=4096")
    sequence = activation_bytes(asked.model, 32000, 4096, "bf16")
    assert needed(asked, asked.model) == 16 * 6_738_415_616 + sequence


def test_it_says_how_much_is_needed_how_much_there_is_and_what_fits() -> None:
    said = refusal(LAPTOP, "model=llama2-7b")
    assert "training this llama needs at least 101." in said
    assert "this machine has 24.0 GiB" in said
    assert "The largest preset that fits is llama3.2-1b (19.0 GiB): model=llama3.2-1b" in said


def test_workers_on_cpus_share_the_memory_and_fewer_may_fit() -> None:
    asked = ["model.layers=24", "model.heads=16", "model.width=1024", "model.vocab=50257", "on.workers=5"]
    assert "for each of 5 workers, and this machine has 24.0 GiB. Set on.workers=4: so many fit" in refusal(
        LAPTOP, *asked
    )
    assert submission(spec(*asked, "on.workers=4"), LAPTOP, Path("/runs/tale")).workers == 4


def test_every_gpu_must_hold_the_whole() -> None:
    assert "a GPU here has 80.0 GiB. The largest preset that fits is llama3.2-3b" in refusal(GPUS, "model=llama3.1-8b")
    assert submission(spec("model=llama3.2-3b"), GPUS, Path("/runs/tale")).workers == 8


def test_a_teacher_needs_its_weights_in_every_worker() -> None:
    asked, teacher = (
        spec("model=gpt2-small", "data.tokenizer.train=300", "on.workers=8"),
        Model(family="llama", vocab=300),
    )
    alone = needed(asked, asked.model)
    assert needed(asked, asked.model, teacher) == alone + 4 * parameters(teacher, 300)
    submission(asked, LAPTOP, Path("/runs/tale"))
    large = teacher.model_copy(update={"layers": 120, "width": 1536})
    with pytest.raises(
        UserError, match=r"this gpt2 beside its teacher needs .* each of 8 workers.* on\.workers=[1-7]:"
    ):
        submission(asked, LAPTOP, Path("/runs/tale"), teacher=large)
    with pytest.raises(UserError, match=r"Take a smaller teacher: its weights alone are \d+"):
        submission(asked, LAPTOP, Path("/runs/tale"), teacher=large.model_copy(update={"layers": 900}))


def test_what_nothing_fits_into_still_has_a_remedy() -> None:
    tiny = Facts(cores=2, gpus=(), torch="2.15.0", memory=GIB // 64)
    assert "Take fewer layers or a smaller width" in refusal(tiny, "model=llama-tiny")


def test_a_place_whose_memory_nobody_knows_and_a_model_of_ones_own_are_let_through() -> None:
    unknown = Facts(cores=2, gpus=(), torch="2.15.0")
    submission(spec("model=llama2-70b"), unknown, Path("/runs/tale"))
    submission(spec("model={family: mine:build, layers: 900, width: 9600}"), LAPTOP, Path("/runs/tale"))


@pytest.mark.parametrize("words", [["--dry-run"], []])
def test_the_command_line_refuses_it_and_leaves_nothing(stoker, books: Path, words: list[str]) -> None:
    done = stoker("train", "model=llama2-70b", f"data={books}", "until.steps=1", "on.device=cpu", *words, code=2)
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("stoker: training this llama needs at least 1")
    assert "GiB" in line
    assert done.stdout == ""
    assert not list(stoker.folder.iterdir())
