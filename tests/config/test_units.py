"""Sizes, durations and shares as people write them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.config.units import (
    format_duration,
    format_share,
    format_size,
    parse_duration,
    parse_share,
    parse_size,
)

SIZES = [
    ("24GB", 24_000_000_000),
    ("24GiB", 25_769_803_776),
    ("24 gb", 24_000_000_000),
    ("512MB", 512_000_000),
    ("512MiB", 536_870_912),
    ("64KiB", 65_536),
    ("64KB", 64_000),
    ("1TB", 10**12),
    ("1TiB", 2**40),
    ("1.5GB", 1_500_000_000),
    ("0.3KiB", 307),
    (".5GiB", 2**29),
    ("7B", 7),
    ("12", 12),
    (12, 12),
    (12.0, 12),
    (0, 0),
]


@pytest.mark.parametrize(("written", "size"), SIZES)
def test_a_size_is_in_bytes(written: str | float, size: int) -> None:
    assert parse_size(written) == size


@pytest.mark.parametrize(
    "written",
    [
        "24GX",
        "24G",
        "24Gi",
        "",
        " ",
        "GB",
        "-1GB",
        "1e9",
        "1.2.3GB",
        "1.5",
        1.5,
        -1,
        True,
        None,
        [],
        math.nan,
        math.inf,
    ],
)
def test_what_is_not_a_size_is_named_with_the_right_forms(written: object) -> None:
    with pytest.raises(ValueError, match="24GB or 24GiB") as raised:
        parse_size(written)  # type: ignore[arg-type]
    assert str(raised.value).startswith(f"{written!r} is not a size")


DURATIONS = [
    ("250ms", 0.25),
    ("30s", 30.0),
    ("5m", 300.0),
    ("1h", 3600.0),
    ("1m30s", 90.0),
    ("1.5 h", 5400.0),
    ("5", 5.0),
    (5, 5.0),
    (0.25, 0.25),
    (0, 0.0),
]


@pytest.mark.parametrize(("written", "seconds"), DURATIONS)
def test_a_duration_is_in_seconds(written: str | float, seconds: float) -> None:
    assert parse_duration(written) == pytest.approx(seconds)


@pytest.mark.parametrize("written", ["5x", "5 min", "5S", "", "s", "-1s", "1e3", "9" * 400, -1, True, None, math.inf])
def test_what_is_not_a_duration_is_named_with_the_right_forms(written: object) -> None:
    with pytest.raises(ValueError, match="250ms, 30s, 5m or 1h") as raised:
        parse_duration(written)  # type: ignore[arg-type]
    assert str(raised.value).startswith(f"{written!r} is not a duration")


@pytest.mark.parametrize(
    ("written", "share"), [("30%", 0.3), ("0.5%", 0.005), ("100 %", 1.0), (0.3, 0.3), ("0.3", 0.3), (1, 1.0), (0, 0.0)]
)
def test_a_share_is_a_fraction(written: str | float, share: float) -> None:
    assert parse_share(written) == pytest.approx(share)


@pytest.mark.parametrize("written", [30, "30", "130%", "-1%", "%", "", True, None, math.nan])
def test_what_is_not_a_share_is_named_with_the_right_forms(written: object) -> None:
    with pytest.raises(ValueError, match=r"30% or 0\.3") as raised:
        parse_share(written)  # type: ignore[arg-type]
    assert str(raised.value).startswith(f"{written!r} is not a share")


@given(st.integers(min_value=0, max_value=2**63))
def test_a_size_survives_being_written(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(st.integers(min_value=0, max_value=10**9), st.sampled_from(["B", "KB", "KiB", "MB", "MiB", "GB", "GiB", "TB"]))
def test_a_written_size_survives_being_read(number: int, unit: str) -> None:
    size = parse_size(f"{number}{unit}")
    assert parse_size(format_size(size)) == size


@given(st.integers(min_value=0, max_value=10**9), st.sampled_from([0.001, 1.0, 60.0, 3600.0]))
def test_a_duration_survives_being_written(number: int, unit: float) -> None:
    seconds = number * unit
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.floats(min_value=0.001, max_value=1e9))
def test_any_duration_survives_being_written(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.integers(min_value=0, max_value=1000))
def test_a_share_survives_being_written(per_mille: int) -> None:
    assert parse_share(format_share(per_mille / 1000)) == pytest.approx(per_mille / 1000)


@given(st.text(max_size=12))
def test_no_text_makes_the_parsers_fail_in_another_way(text: str) -> None:
    for parse in (parse_size, parse_duration, parse_share):
        value, refusal = 0.0, ""
        try:
            value = parse(text)
        except ValueError as error:
            refusal = str(error)
        assert math.isfinite(value)
        assert value >= 0
        assert not refusal or refusal.startswith(f"{text!r} is not a ")


@pytest.mark.parametrize(
    ("seconds", "written"), [(0.25, "250ms"), (1.0, "1s"), (90.0, "90s"), (1800.0, "30m"), (7200.0, "2h"), (0.0, "0s")]
)
def test_durations_are_written_in_the_largest_whole_unit(seconds: float, written: str) -> None:
    assert format_duration(seconds) == written
