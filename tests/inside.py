"""Runs `stoker …` in this process and its folder, without the seconds that a new process takes to start."""

import io
import subprocess
from contextlib import redirect_stderr, redirect_stdout

import torch

from stoker.cli.main import main


def inside(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """With one thread, because tests run in parallel."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            exit_code = main(words)
    finally:
        torch.set_num_threads(threads)
    assert exit_code == code, f"stoker {' '.join(words)} exited with {exit_code}\n{out.getvalue()}\n{err.getvalue()}"
    return subprocess.CompletedProcess(words, exit_code, out.getvalue(), err.getvalue())
