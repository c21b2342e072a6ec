"""A supervisor that cannot start prints the reason in one line."""

import errno
import os
import sys

import pytest

from stoker.rundir import RunDir
from stoker.supervise.__main__ import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "3..2", "--node", "0"], "--nodes is 3..2"),
        (["--nodes", "two", "--node", "0"], "--nodes is two"),
        (["--nodes", "2"], "--node is missing"),
        (["--nodes", "2", "--node", "0"], "--address is missing"),
        (["--nodes", "2", "--node", "0", "--address", "192.0.2.1"], "cannot listen on 192.0.2.1:29400"),
        (["--nodes", "2", "--node", "0", "--address", "127.0.0.1", "--port", "65536"], "--port is 65536"),
        (["--nodes", "2", "--node", "0", "--address", "a..b"], "--address is a..b"),
    ],
)
def test_impossible_options_are_refused_in_one_line(
    run: RunDir, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["supervise", str(run.path), "--workers", "1", *arguments])
    assert main() == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error


@pytest.mark.parametrize("nodes", [[], ["--nodes", "1", "--node", "0"], ["--nodes", "2", "--node", "0"]])
def test_a_volume_without_locks_is_reported_and_not_retried(
    run: RunDir, nodes: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    address = ["--address", "127.0.0.1", "--port", "0"] if nodes else []
    monkeypatch.setattr("fcntl.flock", refuse)
    monkeypatch.setattr(sys, "argv", ["supervise", str(run.path), "--workers", "1", *nodes, *address])
    assert main() == 2
    error = capsys.readouterr().err
    assert "cannot be locked (No locks available)" in error
    assert "with the option flock" in error
    assert error.count("\n") == 1
    assert run.holder() is None
