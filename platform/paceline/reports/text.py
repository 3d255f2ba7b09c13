"""Numbers and times as reports write them, with the unit that a metric's name ends in."""

import math
import re
import time
from collections.abc import Callable
from urllib.parse import urlsplit

GAP = "\N{NARROW NO-BREAK SPACE}"
_UNSEEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Characters that neither HTML nor XML may hold, or that cannot be written as UTF-8."""
_BYTES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_SI = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def displayable(text: str) -> str:
    """Return a text in which a replacement character stands for what no file may hold."""
    return _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", text)


def is_web(url: str) -> bool:
    """Return True for the address of a web page, rather than of something that runs or reads a file."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc) and url == url.strip()


def number_text(value: float) -> str:
    """A number in four digits, or in full with separators from 1,000 on."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e12 else f"{value:.4g}"


def seconds_text(seconds: float) -> str:
    """A duration: `850 ms`, `12.4 s`, `3 min 20 s`, `2 h 5 min`."""
    if not math.isfinite(seconds):
        return str(seconds)
    if abs(seconds) < 60:
        scale, unit = next((each for each in _SECONDS if abs(seconds) >= each[0]), _SECONDS[0 if not seconds else -1])
        return f"{seconds / scale:.3g}{GAP}{unit}"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min {rest} s"


def bytes_text(size: float) -> str:
    """A size in memory or on disk: `1.2 GiB`."""
    scale, unit = next((each for each in _BYTES if abs(size) >= each[0]), _BYTES[-1])
    return f"{size / scale:,.4g}{GAP}{unit}"


def megabytes_text(megabytes: float) -> str:
    """A size of so many 10^6 bytes: `72.6 GB`."""
    size = 1e6 * megabytes
    scale, prefix = next((each for each in _SI if abs(size) >= each[0]), _SI[-1])
    return f"{size / scale:.3g}{GAP}{prefix}B"


def percent_text(share: float) -> str:
    """A part of 1 in percent."""
    return f"{100 * share:.3g}{GAP}%"


def counted(count: int, one: str, many: str = "") -> str:
    """A count and its noun: `1 trial`, `3 trials`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def time_text(milliseconds: float | None) -> str:
    """A time since 1970 in UTC; empty where it is not known."""
    if milliseconds is None:
        return ""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(milliseconds / 1000))
    except (OverflowError, ValueError, OSError):
        return ""


def metric_text(value: float, key: str) -> str:
    """The value of a metric, in the unit that is part of its name: `step_seconds`, `peak_memory_bytes`."""
    return _BY_UNIT.get(unit_of(key), number_text)(value) if math.isfinite(value) else str(value)


def unit_of(key: str) -> str:
    """The unit in a metric's name, such as `seconds`; empty for none that is known."""
    # what is behind the unit tells which of several it is: `step_seconds/max`
    return next((unit for unit in _BY_UNIT if re.search(rf"(?:^|[_/]){unit}(?:$|/)", key)), "")


def axis_scale(key: str, largest: float) -> tuple[float, str]:
    """The unit to draw a metric in: by what to divide its values, and the name of the unit.

    Args:
        largest: the largest value that is drawn.
    """
    unit = unit_of(key)
    if unit == "bytes":
        return next((each for each in _BYTES if largest >= each[0]), _BYTES[-1])
    if unit == "megabytes":
        return (1e3, "GB") if largest >= 1e3 else (1.0, "MB")
    if unit == "seconds":
        return next((each for each in ((3600.0, "h"), (60.0, "min"), *_SECONDS) if largest >= each[0]), _SECONDS[0])
    return _AXIS.get(unit, (1.0, ""))


_AXIS = {
    "fraction": (0.01, "%"),
    "percentage": (1.0, "%"),
    "watts": (1.0, "W"),
    "celsius": (1.0, "°C"),
    "megahertz": (1.0, "MHz"),
    "joules": (1.0, "J"),
}
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
