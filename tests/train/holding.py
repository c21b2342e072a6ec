"""A callback `hold`: step N does not end while there is a file `hold-N` in the folder that the run was started in."""

HOLD = """
import time
from pathlib import Path

def hold(record):
    while Path(f"hold-{record['step']}").exists():
        time.sleep(0.01)
"""
