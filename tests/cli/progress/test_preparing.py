import pytest

from stoker.cli.progress.preparing import show_preparing
from stoker.data.prepare import PrepareProgress


def test_preparing_without_a_terminal_prints_each_phase_once(capsys: pytest.CaptureFixture[str]) -> None:
    with show_preparing() as progress:
        for done in range(10):
            progress(PrepareProgress(phase="reading", done=done, total=10))
        progress(PrepareProgress(phase="tokens", done=10, total=10, tokens=3))
    assert capsys.readouterr().out.splitlines() == [
        "reading data: 0 bytes of 10 bytes",
        "tokenizing: 10 bytes of 10 bytes, 3 tokens",
    ]
