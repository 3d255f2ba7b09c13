"""Numbers as the report shows them, with the unit that a metric's key tells."""

import math
import re
from collections.abc import Callable

from paceline.sweeps.results.labels import number_text

GAP = "\N{NARROW NO-BREAK SPACE}"
_SIZES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def seconds_text(seconds: float) -> str:
    """A duration: `850 ms`, `12.4 s`, `3 min 20 s`, `2 h 5 min`."""
    if not math.isfinite(seconds):
        return str(seconds)
    if abs(seconds) < 60:
        return short_time(seconds)
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min {rest} s"


def short_time(seconds: float) -> str:
    """A duration of less than a minute in one unit."""
    if seconds == 0:
        return f"0{GAP}s"
    scale, unit = next((one for one in _TIMES if abs(seconds) >= one[0]), _TIMES[-1])
    return f"{seconds / scale:.3g}{GAP}{unit}"


def bytes_text(size: float) -> str:
    """A size in memory or on disk: `1.2 GiB`."""
    for scale, unit in _SIZES:
        if abs(size) >= scale:
            return f"{size / scale:.3g}{GAP}{unit}" if abs(size) < 1000 * scale else f"{size / scale:,.0f}{GAP}{unit}"
    return f"{size:.0f}{GAP}B"


def megabytes_text(megabytes: float) -> str:
    """A size of so many 10^6 bytes: `72.6 GB`."""
    for scale, unit in ((1e6, "TB"), (1e3, "GB"), (1.0, "MB"), (1e-3, "kB")):
        if abs(megabytes) >= scale:
            return f"{megabytes / scale:.3g}{GAP}{unit}"
    return f"{megabytes * 1e6:.0f}{GAP}B"


def axis_seconds(seconds: float) -> str:
    """A duration in few characters, as there is room for at an axis: `12.5 s`, `1m 20s`, `2h 5m`."""
    if abs(seconds) < 60 or not math.isfinite(seconds):
        return seconds_text(seconds)
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "m"), (0 if hours else rest, "s"))
    return " ".join(f"{count:,}{unit}" for count, unit in parts if count)


def percent_text(share: float) -> str:
    """A share of 1 in percent."""
    return f"{100 * share:.3g}{GAP}%"


def count_text(count: float) -> str:
    """A count in full: `1,234,567`."""
    return f"{count:,.0f}"


def counted(count: int, one: str, many: str = "") -> str:
    """A count and its word: `1 trial`, `3 trials`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def formatter(key: str) -> Callable[[float], str]:
    """How the values of a metric are written, by what its key says of the unit."""
    chosen = _BY_UNIT.get(unit_of(key), number_text)
    return lambda value: chosen(value) if math.isfinite(value) else str(value)


def unit_of(key: str) -> str:
    """What a metric's key says of its unit: `seconds`, `bytes`, `megabytes`; empty for none of these."""
    # what is behind the unit tells which of several it is: `step_seconds/max`
    return next((unit for unit in _BY_UNIT if re.search(rf"(?:^|[_/]){unit}(?:$|/)", key)), "")


def axis_text(value: float) -> str:
    """A value at an axis, as short as it can be told: `0.001`, `2k`, `1.5M`."""
    for scale, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            return f"{value / scale:.4g}{unit}"
    return f"{value:.4g}"


def axis_formatter(key: str) -> Callable[[float], str]:
    """How the values of a metric are written at an axis."""
    unit = unit_of(key)
    return axis_seconds if unit == "seconds" else _BY_UNIT.get(unit, axis_text)


_BY_UNIT: dict[str, Callable[[float], str]] = {
    "seconds": seconds_text,
    "bytes": bytes_text,
    "fraction": percent_text,
    "megabytes": megabytes_text,
    "percentage": lambda value: percent_text(value / 100),
    "watts": lambda value: f"{value:.4g}{GAP}W",
    "celsius": lambda value: f"{value:.3g}{GAP}°C",
    "megahertz": lambda value: f"{value:,.0f}{GAP}MHz",
    "joules": lambda value: f"{value:,.4g}{GAP}J",
}
