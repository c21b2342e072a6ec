"""How long `stoker --help` takes, against an empty Python.

python bench/help.py
"""

import statistics
import subprocess
import sys
import time

RUNS = 15


def main() -> None:
    commands = {"stoker --help": [sys.executable, "-m", "stoker", "--help"], "python -c ''": [sys.executable, "-c", ""]}
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(RUNS):
        for name, command in commands.items():
            began = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            seconds[name].append(time.perf_counter() - began)
    for name, found in seconds.items():
        print(f"{name:<16}{statistics.median(found):>8.3f} s (median of {RUNS}), at most {max(found):.3f} s")


if __name__ == "__main__":
    main()
