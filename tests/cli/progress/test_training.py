import io

import pytest
from rich.console import Console

from stoker.cli.progress.training import TrainingBar, TrainingLines

RECORD = {"step": 5, "loss": 3.25, "tokens_per_second": 12_345.0}


def test_without_a_terminal_plain_lines_are_printed_including_the_last(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with TrainingLines(steps=9) as lines:
        for step in range(1, 10):
            lines.step(RECORD | {"step": step}, left=60.0)
        lines.note("something happened")
    assert capsys.readouterr().out.splitlines() == [
        "step 1/9  loss 3.2500  12.3k tokens/s  1m00s left",
        "step 9/9  loss 3.2500  12.3k tokens/s  1m00s left",
        "something happened",
    ]


def test_a_terminal_gets_a_bar_and_notes_above_it() -> None:
    screen = io.StringIO()
    with TrainingBar(Console(file=screen, force_terminal=True, width=100), steps=9, step=2) as bar:
        bar.note("resumed at step 2 [not markup]")
        bar.step(RECORD | {"val_loss": 3.5}, left=None)
    text = screen.getvalue()
    assert "resumed at step 2 [not markup]" in text
    assert "step 5/9" in text
    assert "loss 3.2500  val 3.5000  12.3k tokens/s" in text


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    screen = io.StringIO()
    with TrainingBar(Console(file=screen, force_terminal=True, width=100), steps=9, step=2) as bar:
        bar.step(RECORD, left=None)
    assert "\x1b[3" not in screen.getvalue()


def test_a_step_whose_loss_is_not_finite_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingLines(steps=None) as lines:
        lines.step({"step": 5, "loss": None, "val_loss": None, "grad_norm": None}, left=None)
    assert capsys.readouterr().out == "step 5  loss not finite  val not finite\n"
