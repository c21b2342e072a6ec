"""What processes use of AWS' Neuron cores, as neuron-monitor tells it: one JSON report a line."""

import json
import shutil
import subprocess
import tempfile
import threading
from glob import glob
from statistics import fmean
from typing import Any

from stoker.observe.chips import Gpu

METRICS = [{"type": "neuroncore_counters"}, {"type": "memory_used"}]
WANTED = {"period": "1s", "neuron_runtimes": [{"tag_filter": ".*", "metrics": METRICS}], "system_metrics": []}
PATIENCE = 10.0  # seconds for the first report


def look() -> dict[int, Gpu]:
    """By process; empty where there is no such chip, or nobody who tells."""
    command = shutil.which("neuron-monitor", path="/opt/aws/neuron/bin:/usr/local/bin:/usr/bin:/bin")
    if command is None or not glob("/dev/neuron*"):
        return {}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
        json.dump(WANTED, config)
        config.flush()
        with subprocess.Popen([command, "-c", config.name], stdout=subprocess.PIPE, text=True) as monitor:
            assert monitor.stdout is not None
            timer = threading.Timer(PATIENCE, monitor.kill)
            timer.start()
            line = monitor.stdout.readline()
            timer.cancel()
            monitor.kill()
    try:
        return read(json.loads(line))
    except ValueError:
        return {}


def read(report: dict[str, Any]) -> dict[int, Gpu]:
    found = {}
    for one in report.get("neuron_runtime_data") or []:
        told = one.get("report") or {}
        cores = (told.get("neuroncore_counters") or {}).get("neuroncores_in_use") or {}
        memory = (told.get("memory_used") or {}).get("neuron_runtime_used_bytes") or {}
        if cores:
            found[int(one["pid"])] = Gpu(
                index=_span(sorted(map(int, cores))),
                uuid="",
                use=fmean(core.get("neuroncore_utilization") or 0.0 for core in cores.values()),
                memory=memory.get("neuron_device"),
                memory_total=None,
            )
    return found


def of(found: dict[int, Gpu], pids: set[int]) -> Gpu | None:
    """That of one of these processes."""
    return next((gpu for pid, gpu in found.items() if pid in pids), None)


def _span(numbers: list[int]) -> str:
    whole = numbers == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 1
    return f"{numbers[0]}-{numbers[-1]}" if whole else ",".join(map(str, numbers))
