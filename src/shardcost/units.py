"""Sizes, rates and times as people write them, and back.

Quantities inside shardcost are plain numbers in base units: bytes, bytes per second, seconds,
FLOP per second. This module is where text becomes such a number and a number becomes text.

Two differences that the field trips over are enforced, never guessed:

* bytes and bits: ``B`` is bytes, ``b`` (or ``bit``) is bits; a size cannot be given in bits;
* decimal and binary: ``GB`` is 1e9 bytes, ``GiB`` is 2**30; a bare ``G`` is an error.

>>> parse_bytes("64MiB"), parse_bytes("64 MB")
(67108864, 64000000)
>>> parse_rate("450GB/s"), parse_rate("400Gb/s")
(450000000000.0, 50000000000.0)
>>> parse_time("3.2us")
3.2e-06
>>> format_bytes(67108864), format_rate(50e9), format_time(3.2e-6)
('64 MiB', '50 GB/s', '3.2 us')
"""

from __future__ import annotations

import re
from typing import Any, Final, SupportsFloat

from shardcost.errors import BadTypeError, BadValueError

GIGA: Final = 10**9
_DECIMAL: Final = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_PREFIXES: Final = _DECIMAL | _BINARY
_NANOSECONDS: Final = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,  # the micro sign
    "μs": 10**3,  # the Greek letter mu
    "ms": 10**6,
    "s": GIGA,
    "min": 60 * GIGA,
    "h": 3600 * GIGA,
}
# Bounded repetition: a hostile number cannot make the exact arithmetic below slow.
_QUANTITY: Final = re.compile(
    r"\s*([0-9]{1,30}(?:\.[0-9]{0,30})?(?:[eE][+-]?[0-9]{1,2})?)\s*([^\s0-9.][^\s]{0,15})?\s*"
)
_UNIT_OF_DATA: Final = re.compile(r"([kKMGTP]i?)?(B|b|bit|bits)?")


def parse_bytes(text: str, name: str = "size") -> int:
    """Return a size such as ``64MiB``, ``1.5 GB`` or ``4096`` (bytes) in bytes."""
    rule = "a size with its unit, like 64MiB (2**20 bytes each), 64MB (1e6) or 4096 (bytes)"
    (number, parts), unit = _split(text, name, rule)
    match = _UNIT_OF_DATA.fullmatch(unit)
    if not match:
        raise BadValueError(name, text, rule)
    prefix, kind = match[1] or "", match[2] or ""
    if kind.startswith("b"):
        raise BadValueError(name, text, f"in bytes, not bits; write {prefix}B for bytes")
    if prefix and not kind:
        raise BadValueError(name, text, _say_which(prefix))
    size, rest = divmod(number * _factor(prefix, name, text), parts)
    if rest:
        raise BadValueError(name, text, "a whole number of bytes")
    return size


def parse_rate(text: str, name: str = "bandwidth") -> float:
    """Return a bandwidth such as ``450GB/s`` or ``400Gb/s`` (bits) in bytes per second.

    ``GBps`` and ``Gbps`` are read as ``GB/s`` and ``Gb/s``.
    """
    rule = "a rate above 0 with its unit, like 450GB/s (bytes) or 400Gb/s (bits)"
    (number, parts), unit = _split(text, name, rule)
    data, per_second = re.fullmatch(r"(.*?)(/s|ps)?", unit).groups()  # type: ignore[union-attr]
    match = _UNIT_OF_DATA.fullmatch(data)
    if not match or not per_second or not match[2] or not number:
        raise BadValueError(name, text, rule)
    per_byte = 8 if match[2].startswith("b") else 1
    return number * _factor(match[1] or "", name, text) / (parts * per_byte)


def parse_time(text: str, name: str = "time") -> float:
    """Return a time such as ``3.2us``, ``15 ms`` or ``2min`` in seconds."""
    rule = "a time with its unit (ns, us, ms, s, min, h), like 3.2us"
    (number, parts), unit = _split(text, name, rule)
    if unit not in _NANOSECONDS:
        raise BadValueError(name, text, rule)
    return number * _NANOSECONDS[unit] / (parts * GIGA)


def parse_flops(text: str, name: str = "rate") -> float:
    """Return a rate of computation such as ``989.4TFLOP/s`` or ``2PFLOPS`` in FLOP per second."""
    return _parse_scaled(text, name, r"FLOP(?:/s|S|s)", "989TFLOP/s")


def parse_frequency(text: str, name: str = "clock") -> float:
    """Return a clock such as ``1980MHz`` or ``1.98GHz`` in hertz."""
    return _parse_scaled(text, name, "Hz", "1980MHz")


def parse_power(text: str, name: str = "power") -> float:
    """Return a power such as ``700W`` or ``1.2kW`` in watts."""
    return _parse_scaled(text, name, "W", "700W")


def _parse_scaled(text: str, name: str, unit: str, example: str) -> float:
    """Return a number above 0 whose unit has a decimal prefix."""
    rule = f"a number above 0 with its unit, like {example}"
    (number, parts), written = _split(text, name, rule)
    match = re.fullmatch(rf"([kKMGTPE]?){unit}", written)
    if not match or not number:
        raise BadValueError(name, text, rule)
    return number * {**_DECIMAL, "E": 10**18}[match[1]] / parts


def format_bytes(size_bytes: SupportsFloat) -> str:
    """Return a size in binary units, as memory and messages are counted: ``64 MiB``."""
    return _scaled(size_bytes, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"])


def format_bytes_decimal(size_bytes: SupportsFloat) -> str:
    """Return an amount of traffic in decimal units, which divide by GB/s: ``18.79 GB``."""
    return _scaled(size_bytes, 1000, ["B", "kB", "MB", "GB", "TB", "PB", "EB"])


def format_rate(bytes_per_s: SupportsFloat) -> str:
    """Return a bandwidth in decimal bytes per second: ``450 GB/s``."""
    return _scaled(bytes_per_s, 1000, ["B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s"])


def format_flops(flop_per_s: SupportsFloat) -> str:
    """Return a rate of computation: ``989.4 TFLOP/s``."""
    units = ["FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s", "EFLOP/s"]
    return _scaled(flop_per_s, 1000, units)


def format_count(count: SupportsFloat) -> str:
    """Return a large count the way parameter counts are written: ``70.55B``."""
    return _scaled(count, 1000, ["", "K", "M", "B", "T"]).replace(" ", "")


def format_time(seconds: SupportsFloat) -> str:
    """Return a time in the unit that suits it: ``3.2 us``, ``41.76 ms``, ``2.5 s``."""
    value = float(seconds)
    if value == 0 or value >= 1:
        return f"{_digits(value)} s"
    return _scaled(value * 1e9, 1000, ["ns", "us", "ms", "s"])


def _split(text: str, name: str, rule: str) -> tuple[tuple[int, int], str]:
    """Return the number that a text begins with, as a fraction of whole numbers, and its unit."""
    if not isinstance(text, str):
        raise BadTypeError(name, text, rule)
    match = _QUANTITY.fullmatch(text)
    if not match:
        raise BadValueError(name, text, rule)
    digits, _, exponent = match[1].lower().partition("e")
    whole, _, part = digits.partition(".")
    power = int(exponent or 0) - len(part)
    number = int(whole + part)
    return (number * 10**power, 1) if power > 0 else (number, 10**-power), match[2] or ""


def _factor(prefix: str, name: str, text: str) -> int:
    if prefix not in _PREFIXES:  # "ki": the binary prefix has a capital K
        raise BadValueError(name, text, "written with a known prefix, like kB, KiB, MB or MiB")
    return _PREFIXES[prefix]


def _say_which(prefix: str) -> str:
    """Return the rule that a bare prefix breaks, with both ways out."""
    letter = prefix[0].upper()
    power = "kMGTP".lower().index(letter.lower()) + 1
    return (
        f"clear about its unit: write {letter}iB for {1024**power:,} bytes each"
        f" or {letter}B for {1000**power:,}"
    )


def _scaled(value: SupportsFloat, step: int, units: list[str]) -> str:
    scaled, unit = float(value), units[0]
    for unit in units:
        if float(f"{abs(scaled):.4g}") < step or unit == units[-1]:  # 999.99 B is 1 kB
            break
        scaled /= step
    return f"{_digits(scaled)} {unit}"


def _digits(value: float) -> str:
    """Return at most four significant digits, without an exponent or trailing zeros."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    text = f"{value:.4g}"
    return f"{value:.4f}".rstrip("0").rstrip(".") if "e" in text else text


def format_percent(share: Any) -> str:
    """Return a share in percent.

    >>> format_percent(0.2439)
    '24.4 %'
    """
    return f"{100 * float(share):.1f} %"


def format_percentage(value: float) -> str:
    """Return a percentage with the digits that count.

    >>> format_percentage(24.37), format_percentage(2.444), format_percentage(0.012)
    ('24 %', '2.4 %', '0.012 %')
    """
    return f"{value:.0f} %" if abs(value) >= 9.95 else f"{value:.2g} %"


def format_tokens(per_s: Any) -> str:
    """Return tokens per second with the digits that count.

    >>> format_tokens(3413.3), format_tokens(53.33)
    ('3,413', '53.3')
    """
    return f"{float(per_s):,.0f}" if per_s >= 100 else f"{float(per_s):.3g}"


def format_electricity(joules: Any) -> str:
    """Return an energy as electricity is billed.

    >>> format_electricity(7.776e13), format_electricity(3.6e6)
    ('21.6 GWh', '1 kWh')
    """
    return _scaled(float(joules) / 3600, 1000, ["Wh", "kWh", "MWh", "GWh", "TWh"])


def format_energy(joules: Any) -> str:
    """Return an energy in the unit that suits it.

    >>> format_energy(105.0), format_energy(194317.0)
    ('105 J', '194 kJ')
    """
    value = float(joules)
    for unit in ("J", "kJ", "MJ"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.4g} GJ"
