"""What a chip can do at best: the denominator of MFU. A chip that is not listed has none: a guess misleads."""

from functools import cache
from typing import Literal

from stoker.spec.document import read_document
from stoker.spec.presets import FOLDER

Arithmetic = Literal["bf16", "fp16", "fp32", "tf32"]


def peak_flops(device_name: str, arithmetic: Arithmetic) -> float | None:
    """Peak dense FLOP/s of the device that torch.cuda.get_device_name() names; `tf32` is fp32 on tensor cores."""
    name = device_name.removeprefix("NVIDIA ").removeprefix("Tesla ").strip()
    return _chips().get(name, {}).get(arithmetic)


@cache
def _chips() -> dict[str, dict[str, float]]:
    chips = read_document(FOLDER / "chips.yaml").values["chips"]
    return {
        name: {arithmetic: float(chip[arithmetic]) * 1e12 for arithmetic in chip if arithmetic != "names"}
        for chip in chips
        for name in chip["names"]
    }
