"""The AWS Neuron cores that processes use, read with neuron-monitor: one JSON report per line."""

import json
import shutil
import subprocess
import tempfile
import threading
from glob import glob
from statistics import fmean
from typing import Any

from stoker.backends.local.accelerator import Accelerator

METRICS = [{"type": "neuroncore_counters"}, {"type": "memory_used"}]
CONFIG = {"period": "1s", "neuron_runtimes": [{"tag_filter": ".*", "metrics": METRICS}], "system_metrics": []}
SEARCH_PATH = "/opt/aws/neuron/bin:/usr/local/bin:/usr/bin:/bin"
FIRST_REPORT_TIMEOUT_S = 10.0


def read_cores() -> dict[int, Accelerator]:
    """By process id; empty where there is no Neuron device or no neuron-monitor."""
    command = shutil.which("neuron-monitor", path=SEARCH_PATH)
    if command is None or not glob("/dev/neuron*"):
        return {}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
        json.dump(CONFIG, config)
        config.flush()
        with subprocess.Popen([command, "-c", config.name], stdout=subprocess.PIPE, text=True) as monitor:
            assert monitor.stdout is not None
            timer = threading.Timer(FIRST_REPORT_TIMEOUT_S, monitor.kill)
            timer.start()
            line = monitor.stdout.readline()
            timer.cancel()
            monitor.kill()
    try:
        return parse(json.loads(line))
    except (ValueError, KeyError, TypeError, AttributeError):  # another version of neuron-monitor
        return {}


def parse(report: dict[str, Any]) -> dict[int, Accelerator]:
    cores_of: dict[int, Accelerator] = {}
    for runtime in report.get("neuron_runtime_data") or []:
        metrics = runtime.get("report") or {}
        cores = (metrics.get("neuroncore_counters") or {}).get("neuroncores_in_use") or {}
        memory = (metrics.get("memory_used") or {}).get("neuron_runtime_used_bytes") or {}
        if cores:
            cores_of[int(runtime["pid"])] = Accelerator(
                index=_range(sorted(map(int, cores))),
                uuid="",
                use=fmean(core.get("neuroncore_utilization") or 0.0 for core in cores.values()),
                memory=memory.get("neuron_device"),
                memory_total=None,
            )
    return cores_of


def of_any(cores: dict[int, Accelerator], pids: set[int]) -> Accelerator | None:
    """The cores of the first of these processes that has some."""
    return next((accelerator for pid, accelerator in cores.items() if pid in pids), None)


def _range(numbers: list[int]) -> str:
    contiguous = numbers == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 1
    return f"{numbers[0]}-{numbers[-1]}" if contiguous else ",".join(map(str, numbers))
