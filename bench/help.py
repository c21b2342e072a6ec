"""Measures `stoker --help` against an empty Python program.

python bench/help.py
"""

import sys

from medians import print_medians

RUNS = 15


def main() -> None:
    commands = {"stoker --help": [sys.executable, "-m", "stoker", "--help"], "python -c ''": [sys.executable, "-c", ""]}
    print_medians(commands, turns=RUNS)


if __name__ == "__main__":
    main()
