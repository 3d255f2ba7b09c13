"""A tune-up's figures in words, the same wherever they are shown."""

from paceline.study.tuneup.outcome import ArmResult, Quality


def speed_text(speedup: float | None, interval: tuple[float, float] | None) -> str:
    """Such as `2.13 x (2.02-2.25)`."""
    return "not measured" if speedup is None else interval_text(speedup, interval).replace(" (", " x (", 1)


def interval_text(value: float, interval: tuple[float, float] | None) -> str:
    """Such as `2.13 (2.02-2.25)`."""
    return f"{value:.2f}" if interval is None else f"{value:.2f} ({interval[0]:.2f}-{interval[1]:.2f})"


def ratio_text(ratio: float | None) -> str:
    """Such as `0.63 x`; a dash when it was not measured."""
    return "-" if ratio is None else f"{ratio:.2f} x"


def quality_text(quality: Quality) -> str:
    """Such as `val/accuracy equivalent, -0.0010 (-0.0032 to +0.0012) over 5 seeds`."""
    if quality.verdict == "same":
        return "computes the same"
    if quality.difference is None or quality.interval is None:
        return quality.verdict
    low, high = quality.interval
    verdict = "not worse" if quality.verdict == "undecided" and quality.is_not_inferior else quality.verdict
    difference = f"{quality.difference:+.4f} ({low:+.4f} to {high:+.4f})"
    return f"{quality.metric} {verdict}, {difference} over {quality.seeds} seeds"


def arm_cells(arm: ArmResult) -> tuple[str, ...]:
    """Name, verdict, speed, memory, and quality or reason: a row of the table."""
    if arm.verdict == "not applicable":
        return arm.name, arm.verdict, "", "", arm.reason
    speed = speed_text(arm.speedup, arm.speedup_interval)
    return arm.name, arm.verdict, speed, ratio_text(arm.peak_memory_ratio), quality_text(arm.quality)


HEADING = ("technique", "verdict", "speed", "memory", "quality")
