"""Ends that fall silent, and bytes that are no frames."""

import signal
from pathlib import Path
from typing import Any

import pytest

from stoker.launch.transfer.frames import Cut, Frames
from stoker.launch.transfer.send import Item, send


def test_an_end_that_falls_silent_is_taken_to_be_gone(there: Any, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(30_000_000))
    pipe = there.connect(["-m", "stoker.launch.transfer", "receive", there.root])
    pipe.process.send_signal(signal.SIGSTOP)
    with pytest.raises(Cut):
        send(Frames(pipe, silence=2), [Item(files={"x": tmp_path / "x"}, into="data")])


def test_what_is_no_frame_is_not_believed(there: Any) -> None:
    pipe = there.connect(["-c", "print('bash: warning: something')"])
    with pytest.raises(Cut, match="no frame"):
        Frames(pipe).hear()


def test_who_is_cut_off_ends_by_itself(there: Any) -> None:
    pipe = there.connect(["-m", "stoker.launch.transfer", "receive", there.root])
    pipe.process.stdin.close()
    assert pipe.process.wait(timeout=60) == 75
