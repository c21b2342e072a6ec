"""Nodes whose GPUs are not what they should be, from their preflight: pure."""

from dataclasses import dataclass
from statistics import median
from typing import Any

from stoker.launch.probe.survey import Survey

LEAST_FREE = 0.9  # of a GPU's memory, before anybody trains on it
SLOW_CHIP = 0.8  # of the median of all others
SLOW_NODE = 0.5  # of the median all-reduce of the other nodes


@dataclass(frozen=True, kw_only=True, slots=True)
class Bad:
    pod: str
    problem: str
    remedy: str = ""
    avoid: bool = True
    """It is the node's fault, and others may do."""


def bad_gpus(survey: Survey) -> list[Bad]:
    found: list[Bad] = []
    chips = {pod: told for pod, told in survey.gpus.items() if told.get("device") == "cuda"}  # a CPU has other work too
    speeds = [one["tflops"] for told in chips.values() for one in told["devices"] if one["tflops"]]
    reduced = {pod: told["all_reduce"].get("gbytes") for pod, told in chips.items()}
    for pod, told in survey.gpus.items():
        if told.get("error"):
            found.append(
                Bad(
                    pod=pod,
                    problem=f"could not try its GPUs: {told['error']}",
                    remedy="Use the image of the run, with torch and Stoker",
                    avoid=False,
                )
            )
            continue
        if len(told["devices"]) != told["wanted"]:
            found.append(Bad(pod=pod, problem=f"has {len(told['devices'])} GPUs of {told['wanted']}"))
        found += [
            Bad(pod=pod, problem=text)
            for one in told["devices"]
            if (text := _wrong(one, speeds if pod in chips else []))
        ]
        reduce = told["all_reduce"]
        others = [value for other, value in reduced.items() if other != pod and value] if pod in chips else []
        if reduce.get("error"):
            found.append(Bad(pod=pod, problem=f"cannot all-reduce over its GPUs: {reduce['error']}"))
        elif others and reduce.get("gbytes") and reduce["gbytes"] < SLOW_NODE * median(others):
            figures = f"{reduce['gbytes']:.3g} GB/s; others have {median(others):.3g}"
            found.append(Bad(pod=pod, problem=f"all-reduces at {figures}"))
    return found


def _wrong(device: dict[str, Any], speeds: list[float]) -> str:
    name = f"GPU {device['index']}"
    if device.get("error"):
        return f"cannot use {name}: {device['error']}"
    if not device["right"]:
        return f"computes wrong on {name}: its matrix product differs from the known one"
    if device["memory"] and device["free"] < LEAST_FREE * device["memory"]:
        used = (device["memory"] - device["free"]) / 2**30
        return f"has {used:.1f} GiB of {name}'s memory in use by somebody else"
    if len(speeds) > 1 and device["tflops"] < SLOW_CHIP * median(speeds):
        return f"computes slowly on {name}: {device['tflops']:.3g} TFLOP/s; others have {median(speeds):.3g}"
    return ""
