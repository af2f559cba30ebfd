"""Quantities as people write them: `8GiB`, `1Gbit/s`, `85 GFLOP/s`, `0.3ms`.

A bare number is in the base unit: bytes, bytes per second, operations per second, seconds. `Gbps` is `Gbit/s`, `GFLOPS` is `GFLOP/s`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal

_NUMBER_AND_UNIT = re.compile(r"\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z/]*)\s*")

SIZES: Mapping[str, float] = {
    "B": 1,
    "kB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
"""Units of size, in bytes."""

RATES: Mapping[str, float] = {
    **{f"{unit}/s": factor for unit, factor in SIZES.items()},
    **{f"{prefix}bit/s": factor / 8 for prefix, factor in {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}.items()},
}
"""Units of bandwidth, in bytes per second."""

FLOPS: Mapping[str, float] = {f"{prefix}FLOP/s": factor for prefix, factor in {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}.items()}
"""Units of computing speed, in floating point operations per second; a multiply and an add are two."""

TIMES: Mapping[str, float] = {"s": 1, "ms": 1e-3, "us": 1e-6}
"""Units of time, in seconds."""


LEAST, LARGEST = 1e-12, 1e18
"""Of what people write, but 0: with such numbers nothing becomes infinite, nor 0. Chosen."""

_ALIASES = (("FLOPS", "FLOP/s"), ("bps", "bit/s"))
"""How units end that others write, and what they are called here."""


def parse_quantity(text: str, units: Mapping[str, float]) -> float:
    """Return a quantity in the base unit of `units`.

    Raises:
        ValueError: with what was expected, if the text is no number with one of the units; what is infinite in the base unit is none.
    """
    match = _NUMBER_AND_UNIT.fullmatch(text)
    unit = match[2] if match else ""
    unit = next((unit.removesuffix(theirs) + ours for theirs, ours in _ALIASES if unit.endswith(theirs)), unit)
    if match is not None and (not unit or unit in units):
        factor = units[unit] if unit else 1
        with suppress(ValueError, ArithmeticError):  # no number, or one whose exponent is none
            value = float(Decimal(match[1]) * Decimal(str(factor)))  # 0.9ms is 0.0009, as written; 0.9 * 1e-3 is not
            if math.isfinite(value):
                return value
    raise ValueError(f"a number, or one with a unit ({', '.join(units)})" if units else "a number")


def format_quantity(value: float, units: Mapping[str, float]) -> str | float:
    """Return a quantity in the largest unit that shortens it and loses nothing, or else as a bare number."""
    plain = int(value) if value == int(value) else value
    texts = [f"{value / factor:g}{unit}" for unit, factor in units.items()]
    exact = [text for text in texts if parse_quantity(text, units) == value]
    return min(exact, key=len) if exact and value else plain
