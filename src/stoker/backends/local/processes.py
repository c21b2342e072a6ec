"""Facts about a process on this machine, from the operating system."""

import psutil


def command(pid: int) -> list[str]:
    """Its command line; empty when it has ended or belongs to another user."""
    try:
        return psutil.Process(pid).cmdline()
    except (psutil.Error, OSError):
        return []


def environment(pid: int) -> dict[str, str]:
    """As it was when the process started; empty when it has ended or belongs to another user."""
    try:
        return psutil.Process(pid).environ()
    except (psutil.Error, OSError):
        return {}
