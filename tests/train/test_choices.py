"""Precision, compile and micro-batch follow from the machine and the size of the run."""

import dataclasses

import pytest
import torch

from stoker.spec.run import RunSpec
from stoker.train.choices import Choices, choose
from stoker.train.devices import Device
from stoker.train.parallel import Parallel

CHIP = Device(
    torch=torch.device("cpu"), chip="cpu", backend="gloo", native_bf16=True, memory_bytes=8 * 2**30, micro_tokens=4096,
    compile_flops=2e14, peak_memory=lambda: 0,
)  # fmt: skip
SIZE = 13_817_856  # parameters of the model below
ALONE = Parallel(world=1)


def spec(**sections: object) -> RunSpec:
    model = {"layers": 6, "heads": 6, "width": 384, "context": 256, "vocab": 8000}
    return RunSpec.model_validate({"data": {"path": "x"}, "until": {"steps": 100}, "model": model, **sections})


@pytest.fixture(autouse=True)
def with_a_compiler(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "c++"
    compiler.touch(0o755)
    monkeypatch.setenv("CXX", str(compiler))


@pytest.mark.parametrize(("native", "precision"), [(True, "bf16"), (False, "fp32")])
def test_bf16_is_the_default_where_the_chip_computes_it_natively(native: bool, precision: str) -> None:
    choices, _ = choose(spec(), dataclasses.replace(CHIP, native_bf16=native), ALONE, steps=100, parameters=SIZE)
    assert choices.precision == precision


def test_a_run_is_compiled_when_it_is_long_enough_to_save_time() -> None:
    assert not choose(spec(), CHIP, ALONE, steps=100, parameters=SIZE)[0].compile
    assert choose(spec(), CHIP, ALONE, steps=100_000, parameters=SIZE)[0].compile
    assert choose(spec(), CHIP, ALONE, steps=None, parameters=SIZE)[0].compile
    assert choose(spec(compile=True), CHIP, ALONE, steps=1, parameters=SIZE)[0].compile
    assert not choose(spec(compile=False), CHIP, ALONE, steps=100_000, parameters=SIZE)[0].compile


@pytest.mark.parametrize("wanted", ["auto", True])
def test_without_a_compiler_it_trains_uncompiled_and_says_so(wanted: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    choices, note = choose(spec(compile=wanted), CHIP, ALONE, steps=100_000, parameters=SIZE)
    assert not choices.compile
    assert note == ["training runs without compile: the C++ compiler no-such-compiler is not installed"]
    assert choose(spec(compile=False), CHIP, ALONE, steps=100_000, parameters=SIZE)[1] == []


def micro(
    spec: RunSpec, *, device: Device = CHIP, parallel: Parallel = ALONE, parameters: int = SIZE, teacher: int = 0
) -> int:
    choices: Choices = choose(spec, device, parallel, steps=1, parameters=parameters, teacher=teacher)[0]
    assert choices.precision == "bf16"
    return choices.micro


def test_a_micro_batch_keeps_the_chip_busy_and_fits_its_memory() -> None:
    assert micro(spec()) == 4096 // 256
    assert micro(spec(), device=dataclasses.replace(CHIP, memory_bytes=300 * 2**20)) < 4096 // 256
    assert micro(spec(), device=dataclasses.replace(CHIP, memory_bytes=2**20)) == 1
    assert micro(spec(batch={"micro": 3})) == 3


def test_a_model_takes_the_memory_of_its_counted_parameters() -> None:
    """The sizes in the spec may say nothing about a model of the user's own."""
    small = dataclasses.replace(CHIP, memory_bytes=2**30)
    assert micro(spec(), device=small) == 16
    assert micro(spec(), device=small, parameters=60_000_000) == 1
    assert micro(spec(), device=small, teacher=240_000_000) == 1


def test_what_other_workers_hold_of_a_model_takes_no_memory_here() -> None:
    small = dataclasses.replace(CHIP, memory_bytes=2**30)
    assert micro(spec(), device=small, parameters=60_000_000, parallel=Parallel(world=4, data=4)) == 1
    assert micro(spec(), device=small, parameters=60_000_000, parallel=Parallel(world=4, shard=4)) == 16
