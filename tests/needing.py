"""Skips tests that need more than this machine has."""

import os
import shutil

import pytest


def root_with(*programs: str) -> None:
    """Skip the test unless it runs as root and these programs are installed. With CI=true a skip is a failure."""
    if missing := _missing(programs):
        if os.environ.get("CI") == "true":
            pytest.fail(f"with CI=true no such test may be skipped: {missing}")
        pytest.skip(missing)


def _missing(programs: tuple[str, ...]) -> str | None:
    if os.geteuid() != 0:
        return "this test needs root"
    absent = [name for name in programs if shutil.which(name) is None]
    return f"this test needs {', '.join(absent)}" if absent else None
