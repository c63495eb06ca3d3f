"""Sizes, rates and times: what is read, what is refused, and what is shown."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardcost import BadTypeError, BadValueError
from shardcost.dtypes import BITS, canonical_dtype
from shardcost.units import (
    format_bytes,
    format_bytes_decimal,
    format_count,
    format_flops,
    format_rate,
    format_time,
    parse_bytes,
    parse_rate,
    parse_time,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("8B", 8),
        ("64MiB", 64 * 2**20),
        ("64 MB", 64_000_000),
        ("1.5KiB", 1536),
        ("2kB", 2000),
        ("2KB", 2000),
        ("8GiB", 8 * 2**30),
        ("1e3B", 1000),
        ("3TiB", 3 * 2**40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("64M", "write MiB for 1,048,576 bytes each or MB for 1,000,000"),
        ("64k", "write KiB for 1,024 bytes each or KB for 1,000"),
        ("64Ki", "write KiB"),
        ("64Gb", "in bytes, not bits"),
        ("64Gbit", "in bytes, not bits"),
        ("64kiB", "known prefix"),
        ("0.3B", "a whole number of bytes"),
        ("-1B", "a size with its unit"),
        ("64 mb", "a size with its unit"),
        ("1e999B", "a size with its unit"),
        ("9" * 31, "a size with its unit"),
        ("64MiB!", "a size with its unit"),
    ],
)
def test_sizes_that_are_not_clear(text: str, rule: str) -> None:
    with pytest.raises(BadValueError, match=rule):
        parse_bytes(text)


def test_a_rate_has_a_unit_and_bits_are_not_bytes() -> None:
    assert parse_rate("400Gb/s") == parse_rate("400 Gbps") == parse_rate("50GB/s") == 50e9
    assert parse_rate("400Gbit/s") == 50e9
    assert parse_rate("1GiB/s") == 2**30
    for text in ("450", "450GB", "450GB/h", "0GB/s", "450gb/s"):
        with pytest.raises(BadValueError, match="450GB/s \\(bytes\\) or 400Gb/s \\(bits\\)"):
            parse_rate(text)


def test_times() -> None:
    assert parse_time("3.2us") == parse_time("3.2µs") == parse_time("3.2 μs") == 3.2e-6
    assert parse_time("2min") == 120
    for text in ("3", "3 m", "-1s", ""):
        with pytest.raises(BadValueError, match="ns, us, ms, s, min, h"):
            parse_time(text)


@pytest.mark.parametrize("parse", [parse_bytes, parse_rate, parse_time])
def test_only_text_is_parsed(parse: Callable[[object], float]) -> None:
    with pytest.raises(BadTypeError):
        parse(64)


@given(st.integers(0, 2**70))
def test_printed_sizes_are_read_back(size: int) -> None:
    text = format_bytes(size).replace(",", "")
    if not text.endswith("EiB"):  # the largest unit that is read is PiB
        number = float(text.split()[0])
        unit = text.split()[1]
        assert abs(number * parse_bytes(f"1{unit}") - size) <= 0.001 * size


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (format_bytes(0), "0 B"),
        (format_bytes(1023), "1,023 B"),
        (format_bytes(67108864), "64 MiB"),
        (format_bytes(2**80), "1,048,576 EiB"),
        (format_bytes_decimal(18_790_481_920), "18.79 GB"),
        (format_bytes_decimal(999.999), "1 kB"),
        (format_rate(450e9), "450 GB/s"),
        (format_flops(989.4e12), "989.4 TFLOP/s"),
        (format_count(70_553_706_496), "70.55B"),
        (format_count(7), "7"),
        (format_time(0), "0 s"),
        (format_time(3.2e-6), "3.2 us"),
        (format_time(0.0417566), "41.76 ms"),
        (format_time(12345), "12,345 s"),
        (format_time(1e-15), "0 ns"),
    ],
)
def test_what_is_shown(shown: str, expected: str) -> None:
    assert shown == expected


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("bf16", "bf16"),
        ("BFloat16", "bf16"),
        ("torch.float16", "fp16"),
        ("Half", "fp16"),
        ("float", "fp32"),
        ("float8_e4m3fn", "fp8"),
    ],
)
def test_number_formats_have_one_name(name: str, canonical: str) -> None:
    assert canonical_dtype(name) == canonical
    assert canonical in BITS


def test_unknown_number_formats() -> None:
    with pytest.raises(BadValueError, match="did you mean bf16"):
        canonical_dtype("bf17")
    with pytest.raises(BadTypeError, match="number format"):
        canonical_dtype(16)  # type: ignore[arg-type]
