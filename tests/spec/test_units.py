import pytest

from stoker.spec.units import count, duration, share, size


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("10k", 10_000),
        ("2.5M", 2_500_000),
        ("1.15M", 1_150_000),
        ("10_000", 10_000),
        ("1e3", 1000),
        ("3B", 3 * 10**9),
        ("1T", 10**12),
        ("9007199254740993", 9007199254740993),
        (3.0, 3),
        (7, 7),
    ],
)
def test_counts(text: object, number: int) -> None:
    assert count(text) == number


@pytest.mark.parametrize("text", ["", "k", "1.5", "0.0001k", "-3", "ten", "1e9999", "10 q", True])
def test_an_invalid_count_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="not a"):
        count(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("45m", 2700), ("45min", 2700), ("1d12h", 129600), ("1h 30m", 5400), ("7.5", 7.5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "h", "-2h", "2h!"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        duration(text)


@pytest.mark.parametrize(("text", "number"), [("2%", 0.02), ("0.05%", 0.0005), ("0.3", 0.3), (0.5, 0.5)])
def test_shares(text: object, number: float) -> None:
    assert share(text) == number


@pytest.mark.parametrize(
    ("text", "number"), [("5GB", 5 * 10**9), ("5g", 5 * 10**9), ("16 GiB", 16 * 2**30), ("1.5kb", 1500), ("700", 700)]
)
def test_a_size_is_in_bytes(text: str, number: int) -> None:
    assert size(text) == number


@pytest.mark.parametrize("text", ["", "big", "-5GB", "5iB", "GB", "5 G B"])
def test_an_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        size(text)
