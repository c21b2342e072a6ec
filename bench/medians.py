"""Measures commands in turns, so that all have the same noise."""

import statistics
import subprocess
import time


def print_medians(commands: dict[str, list[str]], *, turns: int) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(turns):
        for name, command in commands.items():
            began = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            seconds[name].append(time.perf_counter() - began)
    for name, times in seconds.items():
        print(f"{name:<16}{statistics.median(times):>8.3f} s (median of {turns}), at most {max(times):.3f} s")
