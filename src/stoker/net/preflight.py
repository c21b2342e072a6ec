"""Nodes whose GPUs are faulty, slow or in use, from the results of their preflight. Pure."""

from dataclasses import dataclass
from statistics import median
from typing import Any

from stoker.net.survey import NetworkSurvey

LEAST_FREE = 0.9  # of a GPU's memory, before training starts
SLOW_GPU = 0.8  # of the median of all GPUs
SLOW_NODE = 0.5  # of the median all-reduce rate of the other nodes


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuFault:
    pod: str
    problem: str
    remedy: str = ""
    avoid: bool = True
    """The node is at fault: another one may work."""


def gpu_faults(survey: NetworkSurvey) -> list[GpuFault]:
    faults: list[GpuFault] = []
    cuda = {pod: result for pod, result in survey.gpus.items() if result.get("device") == "cuda"}  # CPUs are shared
    speeds = [device["tflops"] for result in cuda.values() for device in result["devices"] if device["tflops"]]
    rates = {pod: result["all_reduce"].get("gbytes") for pod, result in cuda.items()}
    for pod, result in survey.gpus.items():
        if result.get("error"):
            faults.append(
                GpuFault(
                    pod=pod,
                    problem=f"could not test its GPUs: {result['error']}",
                    remedy="Use the image of the run, with torch and Stoker",
                    avoid=False,
                )
            )
            continue
        if len(result["devices"]) != result["wanted"]:
            faults.append(GpuFault(pod=pod, problem=f"has {len(result['devices'])} GPUs of {result['wanted']}"))
        faults += [
            GpuFault(pod=pod, problem=problem)
            for device in result["devices"]
            if (problem := _problem(device, speeds if pod in cuda else []))
        ]
        all_reduce = result["all_reduce"]
        others = [rate for other, rate in rates.items() if other != pod and rate] if pod in cuda else []
        if all_reduce.get("error"):
            faults.append(GpuFault(pod=pod, problem=f"cannot all-reduce over its GPUs: {all_reduce['error']}"))
        elif others and all_reduce.get("gbytes") and all_reduce["gbytes"] < SLOW_NODE * median(others):
            figures = f"{all_reduce['gbytes']:.3g} GB/s; others have {median(others):.3g}"
            faults.append(GpuFault(pod=pod, problem=f"all-reduces at {figures}"))
    return faults


def _problem(device: dict[str, Any], speeds: list[float]) -> str:
    """Empty for a good device."""
    name = f"GPU {device['index']}"
    if device.get("error"):
        return f"cannot use {name}: {device['error']}"
    if not device["right"]:
        return f"computes wrong results on {name}: its matrix product differs from the known one"
    if device["memory"] and device["free"] < LEAST_FREE * device["memory"]:
        used = (device["memory"] - device["free"]) / 2**30
        return f"has {used:.1f} GiB of {name}'s memory in use by another process"
    if len(speeds) > 1 and device["tflops"] < SLOW_GPU * median(speeds):
        return f"computes slowly on {name}: {device['tflops']:.3g} TFLOP/s; others have {median(speeds):.3g}"
    return ""
