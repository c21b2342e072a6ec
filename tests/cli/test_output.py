from datetime import datetime

import pytest

from stoker.cli import output
from stoker.spec.units import short_duration, short_number


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (9999, "9,999"), (12_345, "12.3k"), (1_234_567, "1.23M"), (1.5e9, "1.5B"), (2e12, "2T")],
)
def test_large_numbers_are_short(value: float, text: str) -> None:
    assert short_number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0s"), (59.4, "59s"), (61, "1m01s"), (3723, "1h02m"), (90000, "1d01h")]
)
def test_durations_have_two_units_at_most(seconds: float, text: str) -> None:
    assert short_duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(12, "12 bytes"), (2048, "2 KiB"), (300 * 2**20, "300 MiB"), (2**41, "2.0 TiB")]
)
def test_sizes_are_in_binary_units(value: float, text: str) -> None:
    assert output.size(value) == text


def test_control_characters_are_escaped() -> None:
    assert output.printable("é\x1b[31m\n\tx\x07") == r"é\x1b[31m" + "\n\tx" + r"\x07"


def test_a_table_lines_up() -> None:
    assert output.table(("A", "LONG"), [("wide", "1"), ("b", "22")]) == "A     LONG\nwide  1\nb     22"


def test_a_loss_that_is_not_finite_is_named() -> None:
    assert (output.measured(2.5), output.measured(None)) == ("2.5000", "not finite")


def test_a_moment_is_in_local_time() -> None:
    assert output.moment(datetime(2026, 11, 15, 4, 57, 26).timestamp()) == "2026-11-15 04:57:26"
