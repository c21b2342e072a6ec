import pytest

from stoker.spec.hardware import peak_flops


@pytest.mark.parametrize(
    ("name", "arithmetic", "peak"),
    [
        ("NVIDIA H200", "bf16", 989.4e12),
        ("NVIDIA H100 80GB HBM3", "tf32", 494.7e12),
        ("NVIDIA H100 PCIe", "bf16", 756e12),
        ("NVIDIA A100-SXM4-40GB", "fp16", 312e12),
        ("A100-SXM4-40GB", "fp32", 19.5e12),
        ("Tesla V100-SXM2-16GB", "fp16", 125e12),
        ("Tesla T4", "fp32", 8.1e12),
    ],
)
def test_a_known_chip_has_its_data_sheets_peak(name: str, arithmetic: str, peak: float) -> None:
    assert peak_flops(name, arithmetic) == pytest.approx(peak)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["NVIDIA H800", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA GeForce GTX 1080", ""])
def test_an_unknown_chip_or_a_slice_of_one_has_no_peak(name: str) -> None:
    assert peak_flops(name, "fp16") is None


def test_a_chip_has_no_peak_for_arithmetic_that_it_does_not_support() -> None:
    assert peak_flops("Tesla V100-SXM2-16GB", "bf16") is None
