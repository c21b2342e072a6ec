"""What a spec leaves open is decided from the machine and the size of the run, and never by a guess."""

import dataclasses

import pytest
import torch

from stoker.spec.run import RunSpec
from stoker.train.choices import choose, largest_micro_batch
from stoker.train.devices import Device

CHIP = Device(
    torch=torch.device("cpu"), chip="cpu", backend="gloo", native_bf16=True, memory_bytes=8 * 2**30, micro_tokens=4096,
    compile_flops=2e14, peak_memory=lambda: 0,
)  # fmt: skip
SIZE = 13_817_856  # parameters of the model below


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
    choices, _ = choose(spec(), dataclasses.replace(CHIP, native_bf16=native), steps=100, parameters=SIZE)
    assert choices.precision == precision


def test_a_run_is_compiled_when_it_is_long_enough_to_win_the_time_back() -> None:
    assert not choose(spec(), CHIP, steps=100, parameters=SIZE)[0].compile
    assert choose(spec(), CHIP, steps=100_000, parameters=SIZE)[0].compile
    assert choose(spec(), CHIP, steps=None, parameters=SIZE)[0].compile
    assert choose(spec(compile=True), CHIP, steps=1, parameters=SIZE)[0].compile
    assert not choose(spec(compile=False), CHIP, steps=100_000, parameters=SIZE)[0].compile


@pytest.mark.parametrize("wanted", ["auto", True])
def test_without_a_compiler_it_trains_uncompiled_and_says_so(wanted: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    choices, note = choose(spec(compile=wanted), CHIP, steps=100_000, parameters=SIZE)
    assert not choices.compile
    assert note == ["training runs without compile: the C++ compiler no-such-compiler is not installed"]
    assert choose(spec(compile=False), CHIP, steps=100_000, parameters=SIZE)[1] == []


def test_a_micro_batch_keeps_the_chip_busy_and_fits_its_memory() -> None:
    assert largest_micro_batch(spec(), CHIP, "bf16", parameters=SIZE) == 4096 // 256
    little = dataclasses.replace(CHIP, memory_bytes=300 * 2**20)
    assert largest_micro_batch(spec(), little, "bf16", parameters=SIZE) < 4096 // 256
    assert largest_micro_batch(spec(), dataclasses.replace(CHIP, memory_bytes=2**20), "bf16", parameters=SIZE) == 1
    assert largest_micro_batch(spec(batch={"micro": 3}), CHIP, "bf16", parameters=SIZE) == 3


def test_a_model_is_as_large_as_it_was_counted_whatever_its_numbers_say() -> None:
    """Those of a model of the user's own may say nothing of it."""
    small = dataclasses.replace(CHIP, memory_bytes=2**30)
    assert largest_micro_batch(spec(), small, "bf16", parameters=SIZE) == 16
    assert largest_micro_batch(spec(), small, "bf16", parameters=60_000_000) == 1
